"""A planted bug: where it is, what is changed, and the test that notices it."""

from __future__ import annotations

from dataclasses import dataclass


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
