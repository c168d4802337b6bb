"""A planted bug: where it is, what is changed, and the test that notices it."""

from __future__ import annotations

from dataclasses import dataclass

from tests.mutation.runner import ROOT


@dataclass(frozen=True)
class Bug:
    """A text of a source file, what it is replaced by, and the tests that must then fail."""

    name: str
    file: str
    """Below `src/clew`."""
    before: str
    """It occurs exactly once in the file."""
    after: str
    tests: str
    """Arguments of pytest, below `tests`."""

    @property
    def line(self) -> int:
        """Where the text begins."""
        text = (ROOT / "src/clew" / self.file).read_text()
        return text[: text.index(self.before)].count("\n") + 1

    def has_moved(self) -> bool:
        """Whether its text no longer occurs exactly once."""
        return (ROOT / "src/clew" / self.file).read_text().count(self.before) != 1

    def apply(self, text: str) -> str:
        """The text of its file with the bug."""
        return text.replace(self.before, self.after)

    def __str__(self) -> str:
        return self.name
