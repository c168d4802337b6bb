"""The public top-tagging layout: files of pandas and of the generator, read by the shipped settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import parquet

import clew
from clew import Table, concat, readers
from clew.cli.start import recipe_template
from clew.recipes.jets import generator
from clew.recipes.jets.toptagging import CONSTITUENTS, MOMENTUM, write_top_tagging
from clew.settings import load_settings

from . import jets

NAMES = [f"{part}_{place}" for place in range(200) for part in ("E", "PX", "PY", "PZ")]
TRUTH = ["truthE", "truthPX", "truthPY", "truthPZ"]


def momenta(count: int) -> np.ndarray[Any, Any]:
    """Four momenta (jets, 200, 4) of jets near eta 1, the hardest constituents first; top jets are wider."""
    rng = np.random.default_rng(3)
    values = np.zeros((count, 200, 4), dtype=np.float32)
    for jet, length in enumerate(rng.integers(1, 60, count)):
        pt = np.sort(rng.exponential(20, length) + 0.5)[::-1]
        eta, phi = (centre + (0.05 + 0.2 * (jet % 2)) * rng.normal(size=length) for centre in (1.0, 3.1))
        values[jet, :length] = np.stack([pt * np.cosh(eta), pt * np.cos(phi), pt * np.sin(phi), pt * np.sinh(eta)], 1)
    return values


def public_file(path: Path, values: np.ndarray[Any, Any], **how: Any) -> Path:
    """A file as the public ones: 200 constituents, the true top, `ttv` and `is_signal_new`, as pandas writes it."""
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("tables", reason="pandas writes HDF5 with PyTables")
    frame = pandas.DataFrame(values.reshape(len(values), -1), columns=NAMES)
    truth = pandas.DataFrame(np.zeros((len(values), 4), dtype=np.float32), columns=TRUTH)
    flags = pandas.DataFrame({"ttv": 0, "is_signal_new": np.arange(len(values)) % 2})
    pandas.concat([frame, truth, flags], axis=1).to_hdf(path, key="table", **how)
    return path


def settings(folder: Path, *more: str) -> Any:
    path = recipe_template.write_recipe("mine", "jets/toptagging", folder)[0]
    return load_settings(str(path), [*more, "train.threads=1"])


def samples_of(recipe: Any, path: Path) -> Table:
    events = concat(list(recipe.read(str(path))))
    for step in recipe.transforms():
        events = step(events)
    samples: Table = recipe.prepare(events)
    return samples


@pytest.mark.parametrize("how", [{"format": "table"}, {"format": "fixed"}])
def test_the_shipped_settings_read_the_public_layout(how: dict[str, Any], tmp_path: Path) -> None:
    values = momenta(20)
    samples = samples_of(settings(tmp_path).recipe, public_file(tmp_path / "train.h5", values, **how))
    assert samples.fixed("label").tolist() == [0, 1] * 10
    total = values.sum(axis=1, dtype=np.float64)
    np.testing.assert_allclose(samples.fixed("jet_pt"), np.hypot(total[:, 1], total[:, 2]), rtol=1e-5)
    mass = np.sqrt(np.maximum(total[:, 0] ** 2 - (total[:, 1:] ** 2).sum(axis=1), 0))
    np.testing.assert_allclose(samples.fixed("jet_mass"), mass, rtol=1e-3, atol=0.5)
    constituents = samples.ragged("constituents")
    assert constituents.lengths.tolist() == (values[:, :, 0] > 0).sum(axis=1).tolist()
    axis = np.arcsinh(total[:, 3] / np.hypot(total[:, 1], total[:, 2])), np.arctan2(total[:, 2], total[:, 1])
    energy, px, py, pz = values[3, 0].astype(np.float64)
    pt = np.hypot(px, py)
    deta, dphi = np.arcsinh(pz / pt) - axis[0][3], (np.arctan2(py, px) - axis[1][3] + 3 * np.pi) % (2 * np.pi) - np.pi
    expected = [deta, dphi, (np.hypot(deta, dphi) - 0.2) * 4, (np.log(pt) - 1.7) * 0.7, (np.log(energy) - 2) * 0.7]
    np.testing.assert_allclose(constituents[3][0, :5], expected, rtol=1e-3, atol=1e-4)


def test_a_conversion_to_parquet_gives_the_same_samples(tmp_path: Path) -> None:
    path = public_file(tmp_path / "train.h5", momenta(10), format="table")
    rows = readers.read(str(path))[0]
    parquet.write_table(rows.to_arrow(), tmp_path / "train.parquet")
    recipe = settings(tmp_path).recipe
    one, other = (samples_of(recipe, tmp_path / name) for name in ("train.h5", "train.parquet"))
    np.testing.assert_array_equal(one.ragged("constituents").values, other.ragged("constituents").values)


def test_a_network_learns_from_the_public_layout(tmp_path: Path) -> None:
    files = {
        split: [str(public_file(tmp_path / f"{split}.h5", momenta(count)[-count:], format="table"))]
        for split, count in (("train", 300), ("val", 50), ("test", 60))
    }
    more = ["model.width=16", "model.layers=1", "train.epochs=2", "train.batch_size=30", "train.optimizer.lr=0.01"]
    loaded = settings(tmp_path, *more)
    data = clew.prepare(loaded.recipe, loaded.prepare, input=files, output=str(tmp_path / "data"), workers=1)
    run = clew.train(loaded.recipe, data, config=loaded.train, output=tmp_path / "run")
    metrics: Any = clew.evaluate(run).metrics
    assert metrics["auc"].value > 0.9 and {"rejection_30", "rejection_50"} <= metrics.keys()


def test_a_generated_file_is_read_by_pandas_and_by_clew(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("tables", reason="pandas reads HDF5 with PyTables")
    table = jets(12, classes=2)
    phi = table.ragged("part_dphi")
    write_top_tagging(table.join({"part_eta": table.ragged("part_deta"), "part_phi": phi}), tmp_path / "jets.h5")
    frame = pandas.read_hdf(tmp_path / "jets.h5", key="table")
    assert frame.columns.tolist() == [*NAMES, *TRUTH, "ttv", "is_signal_new"]
    assert frame.shape == (12, CONSTITUENTS * len(MOMENTUM) + 6) and frame["E_0"].dtype == np.float32
    assert len(pandas.read_hdf(tmp_path / "jets.h5", key="table", columns=["is_signal_new"], stop=5)) == 5
    rows = readers.read(str(tmp_path / "jets.h5"))[0]
    for name in ("E_0", "PX_1", "PZ_5", "is_signal_new"):
        np.testing.assert_array_equal(rows.fixed(name), frame[name].to_numpy())
    first = table.ragged("part_energy")[3]
    np.testing.assert_allclose([frame[f"E_{place}"][3] for place in range(len(first))], first, rtol=1e-6)


def test_more_than_200_constituents_are_cut(tmp_path: Path) -> None:
    part = clew.Ragged.from_lengths(np.linspace(9, 1, 500), [0, 250, 1, 249])
    names = ("part_pt", "part_eta", "part_phi", "part_energy")
    write_top_tagging(Table({"label": np.array([0, 1, 0, 1]), **dict.fromkeys(names, part)}), tmp_path / "a.h5")
    rows = readers.read(str(tmp_path / "a.h5"))[0]
    assert rows.fixed("E_199").tolist()[1] == pytest.approx(part[1][199]) and rows.fixed("E_1").tolist()[2] == 0


@pytest.mark.long
def test_generated_jets_have_the_published_selection(tmp_path: Path) -> None:
    pytest.importorskip("pythia8mc", reason="pip install 'clew[hep]'")
    pytest.importorskip("fastjet", reason="pip install 'clew[hep]'")
    loaded = settings(tmp_path)
    ((path, count),) = loaded.recipe.generate(30, 1, tmp_path / "events")
    assert count == 30 and path.name == "synthetic-top-tagging-pt550to650-seed1-00000.h5"
    samples = samples_of(loaded.recipe, path)
    assert samples.fixed("label").tolist() == [0, 1] * 15
    pt, mass = samples.fixed("jet_pt"), samples.fixed("jet_mass")
    assert (pt > 540).all() and (pt < 651).all()
    assert np.median(mass[0::2]) < 120 < np.median(mass[1::2])
    config = loaded.recipe.config.generator
    assert config == generator.JetGeneratorConfig(
        classes=("QCD", "top"),
        pt=(550, 650),
        energy=14_000,
        multiple_interactions=False,
        min_pt=0.5,
        layout="toptagging",
    )
