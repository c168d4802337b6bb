"""A small text file cut into many pieces, and what makes two datasets the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from clew.core.files import sha256
from clew.recipe import Recipe, find

SLOW = str(Path(__file__).parent / "recipes" / "slow.py")
EVENTS = 300


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    """300 events of 1 to 4 lines, about 50 pieces for the slow recipe."""
    path = tmp_path / "numbers.txt"
    rows = [f"{event} {event + line / 8}" for event in range(EVENTS) for line in range(1 + event % 4)]
    path.write_text("\n".join(rows) + "\n")
    return path


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache for one test."""
    monkeypatch.setenv("CLEW_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def slow(**settings: object) -> Recipe:
    """The slow recipe, as found by its file."""
    kind = find(SLOW)
    return kind(kind.Config(**settings))


def fingerprint(folder: Path) -> dict[str, str]:
    """The content of every file of a dataset."""
    return {path.name: sha256(path) for path in sorted(folder.iterdir())}
