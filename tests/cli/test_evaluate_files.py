"""`clew evaluate FILE --against FILE`, with small showers."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from tests.cli import clew

GRID = ["--set", "geometry.kind=grid", "--set", "geometry.cells=[4,3,3]"]
QUICK = ["--set", "quality.seeds=1", "--set", "quality.epochs=3"]


def write_grid(path: Path, *, seed: int, scale: float = 1.0, count: int = 120) -> str:
    random = np.random.default_rng(seed)
    energy = 10 ** random.uniform(0, 1, count)
    with h5py.File(path, "w") as file:
        file["energy"] = energy
        file["ECAL"] = scale * random.gamma(2.0, energy[:, None, None, None] / 72, (count, 4, 3, 3))
    return str(path)


def run(*words: str) -> tuple[int, str]:
    """Return the exit code, and the output in one line."""
    result = clew(*words)
    return result.code, " ".join((result.out + result.err).split())


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    return write_grid(tmp_path / "made.h5", seed=1, scale=2.0), write_grid(tmp_path / "true.h5", seed=2)


def test_a_file_is_evaluated_against_a_file(files: tuple[str, str], tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    words = ("--recipe", "fastsim", *GRID, *QUICK, "--output", str(report))
    code, text = run("evaluate", files[0], "--against", files[1], *words)
    assert code == 0, text
    assert "120 events" in text and "auc/features" in text and "distance/frechet" in text
    page = report.read_text()
    sections = ("Quality", "Classifiers", "Profiles", "Layers", "Correlations", "Separation", "Examples")
    assert [name for name in sections if f"<h2>{name}</h2>" not in page] == []
    assert "generated shower of" in page and "true shower of" in page


def test_a_recipe_without_a_comparison_is_refused(files: tuple[str, str]) -> None:
    code, text = run("evaluate", files[0], "--against", files[1], "--recipe", "tracking")
    assert code == 2 and "recipe tracking cannot evaluate a file against a file" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--against", "true.h5"], "--against needs the recipe"),
        (["--against", "true.h5", "--split", "test"], "--split is for runs"),
        (["--recipe", "fastsim"], "--recipe evaluates a file against a file: add --against FILE"),
        (["--against", "missing.h5", "--recipe", "fastsim"], "missing.h5"),
    ],
)
def test_words_that_do_not_fit_are_refused(words: list[str], message: str, files: tuple[str, str]) -> None:
    code, text = run("evaluate", files[0], *words)
    assert code == 2 and message in text


def test_a_file_with_other_voxels_is_refused(files: tuple[str, str]) -> None:
    code, text = run("evaluate", files[0], "--against", files[1], "--recipe", "fastsim", "--set", "geometry.kind=grid")
    assert code == 2 and "4x3x3 voxels, but a grid of 25x25x25 has 15625" in text


def test_too_few_showers_are_refused(tmp_path: Path, files: tuple[str, str]) -> None:
    few = write_grid(tmp_path / "few.h5", seed=3, count=10)
    code, text = run("evaluate", few, "--against", files[1], "--recipe", "fastsim", *GRID)
    assert code == 2 and "needs 20 showers of each source, not 10" in text
