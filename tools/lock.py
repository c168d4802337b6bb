"""Print the installed versions of the requirements of the project and of their requirements.

Included are the core, every extra except those that only `make test-sites` needs, and the group `dev`. Other installed
packages (rivals for benchmarks, servers) are left out. There are no hashes and no local suffixes (`2.13.0+cpu` becomes
`2.13.0`), so that the same file serves the builds of every platform.
"""

from __future__ import annotations

import sys
import tomllib
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

SITES = {"s3", "xrootd", "rucio", "dask-awkward"}
ALSO = ("scikit-learn",)
"""Packages of rivals that tests need too."""


def installed(name: str) -> Distribution:
    try:
        return distribution(name)
    except PackageNotFoundError:
        sys.exit(f"{name} is not installed here; `make` first, or pip install it")


def resolve(requirements: list[Requirement]) -> dict[str, str]:
    """Return the names and versions of requirements and, recursively, of their requirements and extras."""
    versions: dict[str, str] = {}
    visited: set[tuple[str, str]] = set()
    while requirements:
        each = requirements.pop()
        name, extras = canonicalize_name(each.name), ["", *each.extras]
        for extra in extras:
            if (name, extra) in visited or (each.marker and not each.marker.evaluate({"extra": ""})):
                continue
            visited.add((name, extra))
            package = installed(name)
            where = f" ; {each.marker}" if each.marker else ""  # only direct requirements keep their marker
            versions[name] = package.version.partition("+")[0] + where
            for line in package.requires or ():
                inner = Requirement(line)
                if inner.marker is None or inner.marker.evaluate({"extra": extra}):
                    inner.marker = None
                    requirements.append(inner)
    return versions


def main() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    lines = [
        *project["project"]["dependencies"],
        *(line for name, each in extras.items() if name not in SITES for line in each),
        *project["dependency-groups"]["dev"],
        *ALSO,
    ]
    sys.stdout.write(
        "# Versions for developers and CI; pyproject.toml has the ranges for users. Made by `make lock`.\n"
    )
    for name, version in sorted(resolve([Requirement(line) for line in lines]).items()):
        sys.stdout.write(f"{name}=={version}\n")


if __name__ == "__main__":
    main()
