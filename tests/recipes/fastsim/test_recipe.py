"""The recipe from generated showers to generated showers, with small networks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import clew
from clew import Dataset, Run, Table, settings
from clew.errors import ConfigError, DataError
from clew.recipes.fastsim.columns import ENERGY, VOXELS
from clew.runs.report import write_report

CELLS = (8, 6, 6)
SMALL = ["geometry.kind=grid", "geometry.cells=[8,6,6]", "model.channels=8", "model.latent=8", "train.threads=1"]
QUICK = ["quality.seeds=2", "quality.epochs=2"]
Trained = tuple[Dataset, Run]


def write_grid(path: Path, count: int) -> str:
    """Write showers of 1 to 100 GeV: a peak whose depth grows with the energy, narrow around the axis, response 0.9."""
    random = np.random.default_rng(1)
    energy = 100 ** random.random(count)
    peak = 2 + 0.5 * np.log(energy) + random.normal(0, 0.3, count)
    layers = np.exp(-0.5 * ((np.arange(8) - peak[:, None]) / 1.5) ** 2)
    place = np.arange(6) - 2.5
    around = np.exp(-(place[:, None] ** 2 + place**2) / 2)
    shares = layers[:, :, None, None] * around * random.gamma(5, 0.2, (count, *CELLS))
    total = energy * random.normal(0.9, 0.08, count)
    with h5py.File(path, "w") as file:
        file["energy"] = energy
        file["ECAL"] = total[:, None, None, None] * shares / shares.sum(axis=(1, 2, 3), keepdims=True)
    return str(path)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("fastsim")
    loaded = settings.load_settings("fastsim", [*SMALL, *QUICK, "train.epochs=16", "train.batch_size=32"])
    files = [write_grid(folder / "grid.h5", 640)]
    data = clew.prepare(loaded.recipe, loaded.prepare, input=files, output=str(folder / "data"), workers=1)
    return data, clew.train(loaded.recipe, data, config=loaded.train, output=folder / "run")


@pytest.mark.slow
def test_generated_showers_become_like_true_ones(trained: Trained) -> None:
    first, *_, last = (record["metrics"] for record in trained[1].records(kind="validation"))
    assert last["separation/layers"] < 0.1
    for name in ("response", "voxels", "width"):
        assert last[f"separation/{name}"] < 0.9 * first[f"separation/{name}"], name


@pytest.mark.slow
def test_an_evaluation_draws_the_figures(trained: Trained) -> None:
    result = clew.evaluate(trained[1])
    names = {"response", "layers", "voxels", "lit", "width"}
    assert {f"separation/{name}" for name in names} <= result.metrics.keys()
    assert all(0 <= result.metrics[f"separation/{name}"].value <= 1 for name in names)
    drawn = [path.name for path in (trained[1].plots / "test").glob("*.json")]
    assert all(any(name in each for each in drawn) for name in names)


@pytest.mark.slow
def test_an_evaluation_compares_all_showers(trained: Trained) -> None:
    """Classifiers, distances, profiles, correlations, pictures and times are in the report, with errors."""
    metrics = clew.evaluate(trained[1], name="whole").metrics
    for name in ("auc/features", "auc/voxels", "distance/frechet_x1000", "distance/kernel_x1000"):
        assert np.isfinite(metrics[name].value) and metrics[name].error >= 0, name
    assert metrics["auc/voxels"].value > 0.5
    assert metrics["time/cpu_batch_1_ms"].value > metrics["time/cpu_batch_100_ms"].value > 0
    drawn = " ".join(sorted(path.name for path in (trained[1].plots / "whole").glob("*.json")))
    figures = (
        *("response", "resolution", "longitudinal", "lateral", "widths", "centres", "sparsity", "layer_separation"),
        *("correlations_true", "correlations_generated", "correlations_difference", "roc_voxels", "roc_features"),
        *("shower_0_true", "shower_0_generated", "layer_3_energy", "times"),
    )
    assert [name for name in figures if f"-{name}.json" not in drawn] == []
    write_report(trained[1])
    page = trained[1].report_file.read_text()
    assert all(f"Evaluation: whole, {task}" in page for task in ("classifiers", "profiles", "layers", "correlations"))


def test_showers_are_generated_from_energies_alone(trained: Trained, tmp_path: Path) -> None:
    energy = np.array([2000, 20000, 80000], dtype=np.float32)
    Table({ENERGY: energy}).save(tmp_path / "energies.h5")
    predictions = clew.predict(trained[1], input=[str(tmp_path / "energies.h5")])
    assert isinstance(predictions, Table)
    voxels = predictions.fixed(VOXELS)
    assert voxels.shape == (3, 288) and (voxels >= 0).all()
    assert np.all(np.diff(voxels.sum(axis=1)) > 0)
    again = clew.predict(trained[1], input=[str(tmp_path / "energies.h5")])
    assert isinstance(again, Table) and np.array_equal(again.fixed(VOXELS), voxels)


def test_energy_is_conserved_by_construction() -> None:
    import torch

    from clew.recipes.fastsim.gan import ShowerGenerator
    from clew.recipes.fastsim.particles import ShowerParticles

    particles = ShowerParticles.of(torch.tensor([1000.0, 9000.0]))
    generator = ShowerGenerator((45, 16, 9), latent=8, channels=4)
    sums: list[Any] = []
    for name in ("third", "layer_shares"):  # other shapes of layers, then other layers
        torch.nn.init.normal_(getattr(generator, name).weight)
        with torch.no_grad():
            voxels = generator(particles, torch.ones(2, 8)).view(2, 45, -1)
        sums.append(voxels.sum(dim=2))
    assert not torch.allclose(sums[0], sums[1])
    torch.testing.assert_close(sums[0].sum(dim=1), sums[1].sum(dim=1))


def test_the_gan_has_about_a_million_parameters() -> None:
    network = settings.load_settings("fastsim", []).recipe.model()
    assert 0.5e6 < sum(each.numel() for each in network.parameters()) < 2e6


def test_a_dataset_that_does_not_fit_the_model_is_one_clear_line(trained: Trained, tmp_path: Path) -> None:
    loaded = settings.load_settings("fastsim", [*SMALL, "geometry.cells=[8,6,5]", "train.epochs=1"])
    with pytest.raises(DataError) as caught:
        clew.train(loaded.recipe, trained[0], config=loaded.train, output=tmp_path / "run")
    message = "showers of 288 voxels, but a grid of 8x6x5 has 240; set geometry.kind"
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_layers_that_differ_need_another_model(tmp_path: Path) -> None:
    layers = '<Layer id="0" r_edges="0,5" n_bin_alpha="1"/><Layer id="1" r_edges="0,5,9" n_bin_alpha="4"/>'
    (tmp_path / "binning.xml").write_text(f"<Bins>{layers}</Bins>")
    chosen = ["geometry.kind=xml", f"geometry.file={tmp_path / 'binning.xml'}"]
    with pytest.raises(ConfigError, match=r"model\.kind gan needs equal layers"):
        settings.load_settings("fastsim", chosen).recipe.model()
