"""The commands of the documentation: the lines of the ```sh blocks of a page, in their order."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md"))
)
COMMENT = re.compile(r"(^|\s+)#.*")


def blocks(page: str, language: str) -> list[str]:
    """The blocks of code of a page in a language.

    Args:
        page: its path from the root, such as `docs/howto/train.md`.
    """
    return re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE)


def commands(page: str) -> list[str]:
    """The commands of a page, one line each, without comments; what goes on in the next line is joined."""
    found: list[str] = []
    unfinished = ""
    for line in "".join(blocks(page, "sh")).replace("\\\n", " ").splitlines():
        line = f"{unfinished} {COMMENT.sub('', line)}".strip()
        try:
            shlex.split(line)
        except ValueError:  # a quotation that ends in a later line
            unfinished = line
            continue
        unfinished = ""
        if line:
            found.append(re.sub(r"\s+", " ", line))
    assert not unfinished, f"{page}: {unfinished}"
    return found
