"""Compare versions with known holes (tools/advisories.toml) with requirements.lock and the ranges of pyproject.toml.

Nothing is downloaded: the list of advisories is part of the repository. Prints one line per finding; the exit code is 1
if there is one.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]


def findings(root: Path = ROOT) -> Iterator[str]:
    """Yield one line per locked version or range that has a known hole."""
    advisories = tomllib.loads((ROOT / "tools" / "advisories.toml").read_text())
    floors = {name: (Version(version), reason) for name, (version, reason) in advisories.items()}
    for line in (root / "requirements.lock").read_text().splitlines():
        name, _, version = line.partition("==")
        floor, reason = floors.get(canonicalize_name(name), (None, ""))
        if floor is not None and Version(version) < floor:
            yield f"requirements.lock: {name} {version} is older than {floor} ({reason})"
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    extras = project.get("optional-dependencies", {}).values()
    for text in [*project["dependencies"], *(each for extra in extras for each in extra)]:
        requirement = Requirement(text)
        floor, reason = floors.get(canonicalize_name(requirement.name), (None, ""))
        lowest = [Version(each.version) for each in requirement.specifier if each.operator in (">=", "==", "~=")]
        if floor is not None and (not lowest or max(lowest) < floor):
            yield f"pyproject.toml: {text} allows versions before {floor} ({reason})"


if __name__ == "__main__":
    lines = list(findings(Path(sys.argv[1]) if sys.argv[1:] else ROOT))
    sys.stdout.write("\n".join([*lines, f"{len(lines)} known holes in requirements.lock and pyproject.toml", ""]))
    sys.exit(bool(lines))
