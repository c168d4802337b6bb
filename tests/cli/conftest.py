"""A new user's folder: a recipe of `examples`, a file of events, and the dataset made of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from clew import Ragged, Table
from tests.cli import script

RECIPE = Path(__file__).parents[2] / "examples" / "top_tagger.py"


@pytest.fixture(scope="session")
def _first_steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tagger")
    shutil.copy(RECIPE, folder)
    rng = np.random.default_rng(0)
    top = rng.integers(0, 2, 600)
    jets = [list(rng.exponential(20 + 20 * is_top, rng.integers(1, 6))) for is_top in top]
    Table({"pt": Ragged.from_lists(jets), "top": top}).save(folder / "events.h5")
    prepared = script("prepare", "top_tagger.py", "--input", "events.h5", "--output", "dataset", folder=folder)
    assert prepared.code == 0, prepared
    return folder


@pytest.fixture
def tagger(_first_steps: Path, tmp_path: Path) -> Path:
    """A folder with `top_tagger.py`, `events.h5` and `dataset`, for one test."""
    return Path(shutil.copytree(_first_steps, tmp_path / "work"))


@pytest.fixture
def edited(tagger: Path) -> Callable[..., Path]:
    """Replaces text in the user's recipe: `edited("pt.sum()", "pt.summ()")` returns the folder."""

    def edit(*changes: str) -> Path:
        path = tagger / "top_tagger.py"
        text = path.read_text()
        for old, new in zip(changes[::2], changes[1::2], strict=True):
            assert old in text
            text = text.replace(old, new)
        path.write_text(text)
        return tagger

    return edit
