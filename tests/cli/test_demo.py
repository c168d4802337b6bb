"""`make demo` on a small scale."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli import clew


@pytest.mark.slow
def test_the_demonstration_goes_from_nothing_to_a_report(tmp_path: Path) -> None:
    ended = clew("demo", "--output", tmp_path / "demo", "--events", "100", "--epochs", "1", "--workers", "1")
    assert ended.code == 0, ended.err
    assert "Done in" in ended.out and "4. build tracks" in ended.out
    assert len(list(tmp_path.glob("demo/runs/*/report.html"))) == 1
