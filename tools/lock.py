"""Print the versions of what the project asks for, and of what that asks for, as found in this environment.

Taken are the core, every extra but those that only `make test-sites` needs, and the group `dev`; what else is installed
(rivals for benchmarks, servers) is left out. No hashes and no local suffix (`2.13.0+cpu` becomes `2.13.0`): the same
file serves every platform's builds.
"""

from __future__ import annotations

import sys
import tomllib
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

SITES = {"s3", "xrootd", "rucio"}
ALSO = ("scikit-learn",)
"""Of rivals, those that tests need too."""


def found(name: str) -> Distribution:
    try:
        return distribution(name)
    except PackageNotFoundError:
        sys.exit(f"{name} is not installed here; `make` first, or pip install it")


def wanted(asked: list[Requirement]) -> dict[str, str]:
    """Names and versions, each requirement followed with its extras."""
    versions: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    while asked:
        each = asked.pop()
        name, extras = canonicalize_name(each.name), ["", *each.extras]
        for extra in extras:
            if (name, extra) in seen or (each.marker and not each.marker.evaluate({"extra": ""})):
                continue
            seen.add((name, extra))
            package = found(name)
            where = f" ; {each.marker}" if each.marker else ""  # of what is asked for here; the rest follows from it
            versions[name] = package.version.partition("+")[0] + where
            for line in package.requires or ():
                inner = Requirement(line)
                if inner.marker is None or inner.marker.evaluate({"extra": extra}):
                    inner.marker = None
                    asked.append(inner)
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
    for name, version in sorted(wanted([Requirement(line) for line in lines]).items()):
        sys.stdout.write(f"{name}=={version}\n")


if __name__ == "__main__":
    main()
