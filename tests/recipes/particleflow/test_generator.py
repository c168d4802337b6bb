"""Generated events: numbers of elements per class, and that a sample does not depend on how it is generated."""

from __future__ import annotations

import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from clew import Table, concat
from clew.errors import ConfigError, RecipeError
from clew.recipe import find
from clew.recipes.particleflow import generator, pileup, pythia
from clew.recipes.particleflow.columns import CLASSES, PROCESSES, TOWER, TRACK
from clew.recipes.particleflow.detector import ParticleFlowDetectorConfig
from clew.recipes.particleflow.generator import ParticleFlowGeneratorConfig
from clew.recipes.particleflow.pileup import PileupPoolConfig
from clew.testing import assert_same_table
from tests.cli import clew

PUBLISHED = {"charged hadron": 2600, "neutral hadron": 930, "photon": 1250, "electron": 7, "muon": 2}
"""Mean numbers per event in ttbar with 200 pile-up, read from published plots."""
ELEMENTS = 5033
FEW = ParticleFlowGeneratorConfig(pileup=3, pool=PileupPoolConfig(size=200))
PARAMETRIC = ParticleFlowGeneratorConfig(kind="parametric")
PT = {"separate": 25058.95, "combined": 26496.68}
"""The checksum of all elements in the first two parametric events, by the layout of the calorimeter."""


@pytest.fixture
def _small_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pythia8mc", reason="pip install 'clew[hep]'")
    monkeypatch.setattr(pileup, "COLLISIONS_PER_PART", 100)
    monkeypatch.setitem(
        pythia.PROCESS_SETTINGS, "minimum bias", ("SoftQCD:nonDiffractive = on",)
    )  # starts ten times as fast
    pileup.load_pool.cache_clear()


def counts(table: Table) -> dict[str, float]:
    pid = table.ragged("targets").values[:, 0].astype(int)
    return dict(zip(CLASSES, (np.bincount(pid, minlength=len(CLASSES)) / len(table)).tolist(), strict=True))


def check_counts(table: Table, collisions: int | None = None) -> None:
    """Within 5% and 15% of the published numbers; for leptons within two standard errors of this small sample."""
    lengths = table.ragged("elements").lengths
    assert lengths.mean() == pytest.approx(ELEMENTS, rel=0.05)
    means = counts(table)
    for name, published in PUBLISHED.items():
        luck = (
            2 * np.sqrt(published * (1 / len(table) + (200 / collisions if collisions else 0))) if published < 10 else 0
        )
        assert abs(means[name] - published) < 0.15 * published + luck, (name, means)


def check_columns(table: Table) -> None:
    elements, targets = table.ragged("elements"), table.ragged("targets")
    assert elements.offsets is targets.offsets and elements.values.dtype == targets.values.dtype == np.float32
    assert elements.values.shape[1:] == (12,) and targets.values.shape[1:] == (7,)
    x, y = elements.values, targets.values
    assert np.isfinite(x).all() and np.isfinite(y).all() and set(np.unique(x[:, 0])) == {TOWER, TRACK}
    np.testing.assert_allclose(np.hypot(x[:, 3], x[:, 4]), 1, rtol=1e-5)
    towers, tracks = x[x[:, 0] == TOWER], x[x[:, 0] == TRACK]
    np.testing.assert_allclose(towers[:, 6] + towers[:, 7], towers[:, 5], rtol=1e-4)
    assert (towers[:, 8:] == 0).all() and np.abs(towers[:, 2]).max() < 5.01
    assert np.abs(tracks[:, 2]).max() < 2.5 and set(np.unique(tracks[:, 9])) <= {-1, 1}
    assert (y[y[:, 0] == 0] == 0).all() and (y[y[:, 0] > 0][:, 6] > 0).all()
    assert np.isin(y[x[:, 0] == TRACK][:, 0], (1, 4, 5)).all()


@pytest.mark.slow
def test_pythia_counts_are_the_published_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pythia8mc", reason="pip install 'clew[hep]'")
    monkeypatch.setattr(pileup, "COLLISIONS_PER_PART", 1500)
    table = generator.make_events(80, 1, 0, ParticleFlowGeneratorConfig(pool=PileupPoolConfig(size=1500)))
    check_counts(table, 1500)
    check_columns(table)
    assert (table.fixed("process") == PROCESSES.index("ttbar")).all() and 20 < table.fixed("gen_met").mean() < 90


@pytest.mark.slow
def test_parametric_counts_are_the_published_ones_too() -> None:
    table = generator.make_events(60, 1, 0, PARAMETRIC)
    check_counts(table)
    check_columns(table)
    assert (table.fixed("process") == PROCESSES.index("parametric")).all()


@pytest.mark.parametrize(("layout", "lengths"), [("separate", [4919, 6251]), ("combined", [4295, 5282])])
def test_parametric_events_are_pinned(layout: str, lengths: list[int]) -> None:
    config = PARAMETRIC.model_copy(update={"detector": ParticleFlowDetectorConfig(calorimeter=layout)})
    table = generator.make_events(2, 0, 0, config)
    assert table.ragged("elements").lengths.tolist() == lengths
    assert table.ragged("elements").values[:, 1].sum(dtype=np.float64) == pytest.approx(PT[layout], rel=1e-5)


def test_classes_can_be_separated_by_features() -> None:
    """The electromagnetic share and the energy classify better than the type of element alone."""
    table = generator.make_events(6, 3, 0, PARAMETRIC)
    x, pid = table.ragged("elements").values, table.ragged("targets").values[:, 0]
    tower, share = x[:, 0] == TOWER, x[:, 6] / np.maximum(x[:, 5], 1e-6)
    assert (pid[~tower] == 1).mean() > 0.99
    photon = tower & (share > 0.9)
    assert (pid[photon] == 3).mean() > (pid[tower] == 3).mean() + 0.2
    assert (pid[tower & (share < 0.1)] == 2).mean() > (pid[tower] == 2).mean() + 0.2


@pytest.mark.slow
@pytest.mark.usefixtures("_small_pool")
@pytest.mark.parametrize("config", [FEW, PARAMETRIC], ids=["pythia", "parametric"])
def test_more_events_begin_with_the_same_ones(config: ParticleFlowGeneratorConfig) -> None:
    first, more = generator.make_events(2, 5, 0, config), generator.make_events(4, 5, 0, config)
    assert_same_table(first, more.slice(0, 2))
    other = generator.make_events(2, 6, 0, config)
    assert other.ragged("elements").values.tobytes() != first.ragged("elements").values.tobytes()


@pytest.mark.usefixtures("_small_pool")
def test_any_number_of_processes_makes_the_same_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ["--set", "generator.kind=parametric", "--set", "generator.pileup=5", "--events", "210"]
    for workers in ("1", "2"):
        done = clew(
            "data", "generate", "particleflow", *options, "--output", str(tmp_path / workers), "--workers", workers
        )
        assert done.code == 0, done.err
    one, two = (sorted((tmp_path / workers).iterdir()) for workers in "12")
    assert [path.name for path in one] == [f"synthetic-parametric-pu5-seed0-{n:05d}.h5" for n in range(3)]
    for first, second in zip(one, two, strict=True):
        assert_same_table(Table.load(first), Table.load(second))
    with h5py.File(one[0]) as file:
        assert file.attrs["made"] == "parametric, not physics"
    assert concat([Table.load(path) for path in one]).fixed("event").tolist() == list(range(210))


@pytest.mark.slow
@pytest.mark.usefixtures("_small_pool")
def test_the_pool_is_made_once_and_reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEW_CACHE", str(tmp_path))
    first = pileup.load_pool(FEW.pool, FEW.energy)
    assert len(first.offsets) == 201 and len(list(tmp_path.glob("kept/*/*.h5"))) == 2
    monkeypatch.setattr(pythia, "PythiaGenerator", None)
    pileup.load_pool.cache_clear()
    again = pileup.load_pool(FEW.pool, FEW.energy)
    assert all((a == b).all() for a, b in zip(first.particles, again.particles, strict=True))
    assert clew("cache", "list").out.count("kept") == 2
    drawn, z = again.draw_collisions(50, np.random.default_rng(1))
    assert len(z) == len(drawn.pt) and 0.02 < z.std() < 0.1 and drawn.eta.mean() == pytest.approx(0, abs=0.5)


@pytest.mark.usefixtures("_small_pool")
def test_qcd_and_no_pile_up() -> None:
    hard = generator.make_events(10, 1, 0, ParticleFlowGeneratorConfig(process="qcd", pileup=0))
    check_columns(hard)
    assert 20 < hard.ragged("elements").lengths.mean() < 500 and (hard.fixed("process") == 1).all()


def test_a_beginning_in_the_middle_of_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="first a multiple of 100"):
        list(generator.write_events(5, 1, tmp_path, first=3))


def test_without_pythia_one_line_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pythia8mc", None)
    pythia.load_pythia.cache_clear()
    with pytest.raises(RecipeError, match=r"pip install 'clew\[hep\]', or --set generator.kind=parametric"):
        list(find("particleflow")().generate(5, 1, tmp_path))
    pythia.load_pythia.cache_clear()
