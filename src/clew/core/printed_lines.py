"""Complete lines from what a process writes to a terminal, without colours, movements of the cursor and bars."""

from __future__ import annotations

import re

_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
"""ANSI: colours, cursor, title of the window."""
_CURSOR_UP = re.compile(r"\x1b\[(\d*)A")
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x0c\x0e-\x1f\x7f]")
_LONGEST = 4000
"""Characters of a line; the rest is cut."""


class PrintedLines:
    """Collects the text that is written to one stream, and returns its lines.

    Example:
        >>> lines = PrintedLines()
        >>> lines.feed("loading 10%\\rloading 100%\\rdone\\nnext")
        ['done']
        >>> lines.feed(" line\\x1b[0m\\n")
        ['next line']
    """

    def __init__(self) -> None:
        self._rest = ""

    def feed(self, text: str) -> list[str]:
        """Add text.

        A carriage return discards the line so far, as a terminal does: of a bar that is drawn many times the last state
        is returned. Lines that a live display draws again, below the cursor it moved up, are left out.

        Returns:
            The lines that the text completes.
        """
        redrawn = sum(int(count or 1) for count in _CURSOR_UP.findall(text))
        plain = _UNPRINTABLE.sub("", _SEQUENCE.sub("", text)).replace("\r\n", "\n")
        *lines, self._rest = (self._rest + plain).split("\n")
        if "\r" in self._rest[:-1]:  # the last character may be the first half of a line end
            self._rest = self._rest[self._rest.rindex("\r", 0, -1) + 1 :]
        self._rest = self._rest[: 2 * _LONGEST]
        unchanged = lines[: max(len(lines) - redrawn, 0)]
        return [_shorten(line.rstrip("\r").rpartition("\r")[2].rstrip()) for line in unchanged]

    def flush(self) -> list[str]:
        """Return the line that no line end completed, if there is one."""
        return self.feed("\n") if self._rest.strip() else []


def _shorten(line: str) -> str:
    text = line.encode("utf-8", "replace").decode()
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."
