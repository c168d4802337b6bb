"""Docstrings of clew as reStructuredText: code between single backticks, and blocks that are only indented."""

from __future__ import annotations

import re
from typing import Any

_CODE = re.compile(r"(?<![`\w])`([^`]+)`(?![`\w])")


def as_rst(lines: list[str]) -> list[str]:
    """Return the lines of a docstring with literal text marked as Sphinx expects it.

    An indented block after a blank line is code, unless the line before it opens a section (`Args:`) or a doctest.
    """
    text = _CODE.sub(r"``\1``", "\n".join(lines))
    result: list[str] = []
    previous = ""  # the last line that is not blank
    for line in text.split("\n"):
        indented = line.strip() and _indent(line) >= _indent(previous) + 4
        if previous and indented and result and not result[-1].strip():
            result += [" " * _indent(previous) + "::", ""]
        result.append(line)
        if line.strip():
            previous = line
    return result


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _process(app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    lines[:] = as_rst(lines)


def setup(app: Any) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", _process, priority=400)  # before napoleon
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
