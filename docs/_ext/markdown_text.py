"""Text from the code as Markdown: escaped, in tables, in fenced blocks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def escaped(text: str) -> str:
    """Return text with Markdown's own characters escaped. What is between backticks stays code."""
    parts = re.split(r"(`[^`]+`)", " ".join(text.split()))
    return "".join(part if part.startswith("`") else re.sub(r"([\\*_{}\[\]<>$#~])", r"\\\1", part) for part in parts)


def code(text: str) -> str:
    """Return text as code in a line; empty text stays empty."""
    text = " ".join(text.split())
    ticks = "``" if "`" in text else "`"
    return f"{ticks}{text}{ticks}" if text else ""


def fenced(text: str, language: str = "text") -> str:
    """Return text as a block of code."""
    return f"```{language}\n{text.rstrip()}\n```"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table. Cells are Markdown; bars in them are escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in lines)
