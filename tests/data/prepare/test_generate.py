"""Synthetic events do not depend on the number of processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from clew.core.files import sha256
from clew.data.prepare.generate import generate
from clew.recipe import find


@pytest.mark.parametrize("detector", ["bes3", "bmn"])
def test_the_files_are_the_same_by_one_process_and_by_two(detector: str, tmp_path: Path) -> None:
    recipe_class = find("tracking")
    recipe = recipe_class(recipe_class.Config.model_validate({"detector": {"name": detector}}))
    counts: list[int] = []
    for workers in (1, 2):
        count = generate(
            recipe,
            600,
            5,
            tmp_path / str(workers),
            workers=workers,
            progress=lambda path, count: counts.append(count),
        )
        assert count == 600
    one, two = (sorted((tmp_path / name).iterdir()) for name in ("1", "2"))
    assert [path.name for path in one] == [path.name for path in two] and len(one) == 3
    assert [sha256(path) for path in one] == [sha256(path) for path in two]
    assert sum(counts) == 1200


def test_more_events_begin_with_the_same_ones(tmp_path: Path) -> None:
    recipe = find("tracking")()
    generate(recipe, 512, 3, tmp_path / "more", workers=1)
    generate(recipe, 256, 3, tmp_path / "less", workers=1)
    (less,) = (tmp_path / "less").iterdir()
    assert sha256(less) == sha256(tmp_path / "more" / less.name)
