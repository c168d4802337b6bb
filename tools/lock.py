"""Print the versions of everything in this environment, in the form of a requirements file.

No hashes and no local suffix (`2.13.0+cpu` becomes `2.13.0`): the same file serves every platform's builds.
"""

from __future__ import annotations

import importlib.metadata
import re
import sys

LEFT_OUT = {"clew", "pip", "setuptools", "wheel"}


def main() -> None:
    found = {
        re.sub(r"[-_.]+", "-", package.metadata["Name"]).lower(): package.version.partition("+")[0]
        for package in importlib.metadata.distributions()
    }
    sys.stdout.write(
        "# Versions for developers and CI; pyproject.toml has the ranges for users. Made by `make lock`.\n"
    )
    for name, version in sorted(found.items()):
        if name not in LEFT_OUT:
            sys.stdout.write(f"{name}=={version}\n")


if __name__ == "__main__":
    main()
