"""Which files are the user's own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clew.core.trust import foreign_origin, mark_origin, refusal


def test_a_file_that_a_browser_downloaded_is_from_elsewhere(tmp_path: Path) -> None:
    file = tmp_path / "model.pt2"
    file.touch()
    assert foreign_origin(file) is None
    try:
        os.setxattr(file, "user.xdg.origin.url", b"https://example.org/model.pt2")
    except OSError:
        pytest.skip("a file system without attributes")
    assert foreign_origin(file) == "https://example.org/model.pt2"
    assert foreign_origin(tmp_path) is None


def test_a_mark_counts_for_everything_below_it(tmp_path: Path) -> None:
    mark_origin(tmp_path / "run", "https://example.org")
    (tmp_path / "run" / "code").mkdir()
    assert foreign_origin(tmp_path / "run" / "code") == "https://example.org"
    assert foreign_origin(tmp_path) is None


@pytest.mark.parametrize(
    ("count", "named"), [(1, "a0"), (3, "a0, a1, a2"), (4, "a0, a1, a2 and 1 more"), (9, "a0, a1, a2 and 6 more")]
)
def test_a_refusal_names_three_files(count: int, named: str) -> None:
    message = str(refusal(Path("run"), "user 5", [f"a{number}" for number in range(count)]))
    assert f"run came from user 5 and would run code as you: {named}; read it" in message
