"""A flow from training to generated files: distilled, exported, and run in several processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import clew
from clew import Dataset, Run, settings
from clew.errors import ConfigError, RecipeError
from clew.recipes.fastsim.columns import VOXELS
from tests.cli import clew as clew_command
from tests.cli import script
from tests.recipes.fastsim.test_recipe import SMALL, write_grid

pytestmark = pytest.mark.timeout(400)
FLOW = [
    *SMALL,
    "model.kind=flow",
    "model.width=16",
    "model.depth=1",
    "model.heads=2",
    "model.layer_width=16",
    "model.layer_depth=1",
    "model.steps=2",
    "train.epochs=2",
    "train.batch_size=32",
    "train.optimizer.name=adam",
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("showers")
    loaded = settings.load_settings("fastsim", SMALL)
    files = [write_grid(folder / "grid.h5", 300)]
    return clew.prepare(loaded.recipe, loaded.prepare, input=files, output=str(folder / "data"), workers=1)


def train(data: Dataset, path: Path, *more: str) -> Run:
    loaded = settings.load_settings("fastsim", [*FLOW, *more])
    return clew.train(loaded.recipe, data, config=loaded.train, output=path)


@pytest.fixture(scope="module")
def flow(data: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(data, tmp_path_factory.mktemp("runs") / "flow")


@pytest.fixture(scope="module")
def distilled(data: Dataset, flow: Run) -> Run:
    chosen = ["model.kind=distilled", f"model.teacher={flow.path}", "model.steps=1"]
    return train(data, flow.path.with_name("distilled"), *chosen)


def generated(run: Run | Path, path: Path, **options: Any) -> tuple[Any, Any]:
    chosen = {"events": 40, "ranges": {"energy": (2, 50)}, "seed": 3, "device": "cpu", **options}
    with h5py.File(clew.generate(run, output=path, **chosen)) as file:
        return file["incident_energies"][:], file["showers"][:]


def test_a_flow_trains_and_its_tables_are_saved_with_the_weights(flow: Run, data: Dataset) -> None:
    step = flow.last("step")
    assert step is not None and step["loss"].keys() == {"loss"}
    validated = flow.last("validation")
    assert validated is not None and validated["metrics"]["separation/lit"] < 0.5  # of tables that were not fitted: 1
    energies = data.read("train").fixed("incident_energy")
    low, high = loaded_model(flow).energy_range
    assert low == pytest.approx(energies.min(), rel=1e-4) and high == pytest.approx(energies.max(), rel=1e-4)


def loaded_model(run: Run) -> Any:
    from safetensors.torch import load_file

    model = settings.load_settings("fastsim", FLOW).recipe.model()
    model.load_state_dict(load_file(run.checkpoint("last")))
    return model


def test_a_resumed_flow_is_the_same(data: Dataset, flow: Run, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    from clew.training.api import resume

    short = train(data, tmp_path / "run", "train.epochs=1")
    resume(short, epochs=2)
    one, other = (load_file(run.checkpoint("last")) for run in (flow, short))
    assert all((one[name] == other[name]).all() for name in one)


def test_the_distilled_flow_keeps_the_layers_of_its_teacher(flow: Run, distilled: Run, tmp_path: Path) -> None:
    showers = [generated(run, tmp_path / f"{run.name}.h5")[1].reshape(40, 8, -1) for run in (flow, distilled)]
    assert not np.allclose(showers[0], showers[1])
    np.testing.assert_allclose(showers[0].sum(2), showers[1].sum(2), rtol=1e-3, atol=1e-2)


def test_a_file_depends_on_the_seed_and_not_on_batches_or_processes(flow: Run, tmp_path: Path) -> None:
    energy, showers = generated(flow, tmp_path / "a.h5")
    assert energy.shape == (40, 1) and showers.shape == (40, 288)
    assert energy.min() >= 2000 and energy.max() <= 50_000
    again = generated(flow, tmp_path / "b.h5", workers=2, batch_size=40)
    whole = generated(flow, tmp_path / "c.h5", batch_size=40)
    other = generated(flow, tmp_path / "d.h5", seed=4)
    assert np.array_equal(again[1], whole[1]) and not np.array_equal(other[0], energy)
    assert (tmp_path / "c.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()
    np.testing.assert_allclose(whole[1].sum(1), showers.sum(1), rtol=1e-4)


@pytest.mark.long
@pytest.mark.slow
def test_an_onnx_file_generates_the_same_showers(
    distilled: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr("clew.recipes.fastsim.shower_flow.LAYER_STEPS", 1)  # a smaller graph is written faster
    exported = clew.export(distilled, to="onnx", output=tmp_path / "model.onnx", split="val")
    assert exported.facts.inputs[0].name == "incident_energy"
    one, other = generated(distilled, tmp_path / "torch.h5"), generated(exported.path, tmp_path / "onnx.h5")
    assert np.array_equal(one[0], other[0])
    assert ((one[1] > 0) == (other[1] > 0)).mean() > 0.999
    close = np.isclose(one[1], other[1], rtol=1e-3, atol=1e-3)
    assert close.mean() > 0.99 and exported.facts.outputs == (VOXELS,)


def test_energies_outside_the_trained_range_are_reported(flow: Run, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"energies of 2 to 5000 GeV: the model was trained on 1\.\d* to [\d.]+ GeV"):
        generated(flow, tmp_path / "far.h5", ranges={"energy": (2, 5000)}, events=2)


def test_bad_input_is_one_line(flow: Run, data: Dataset, tmp_path: Path) -> None:
    (tmp_path / "old.h5").touch()
    with pytest.raises(ConfigError, match="exists already"):
        generated(flow, tmp_path / "old.h5")
    with pytest.raises(ConfigError, match="showers need a range of energies in GeV"):
        generated(flow, tmp_path / "new.h5", ranges={})
    with pytest.raises(ConfigError, match="events must be 1 or more"):
        generated(flow, tmp_path / "new.h5", events=0)
    with pytest.raises(ConfigError, match="kind: distilled needs teacher"):
        settings.load_settings("fastsim", ["model.kind=distilled"])
    teacher = ["model.kind=distilled", f"model.teacher={flow.path}"]
    with pytest.raises(ConfigError, match=r"other networks or geometry .*model\.width=16"):
        train(data, tmp_path / "wide", *teacher, "model.width=32")
    assert not (tmp_path / "new.h5").exists()


def test_the_command_generates_and_reports_mistakes(flow: Run, tmp_path: Path) -> None:
    chosen = ["generate", str(flow.path), "--events", "4", "--output", "showers.h5"]
    done = script(*chosen, "--energy", "2:5", folder=tmp_path)
    assert done.code == 0 and "4 events" in done.out
    for more, message in (
        (["--energy", "five"], "--energy five: it must be LOW:HIGH"),
        (["--energy=-1:5"], "must be LOW:HIGH in GeV, above 0"),
        (["--energy", "2:5"], "exists already"),
    ):
        done = clew_command(*chosen[:-1], str(tmp_path / ("new.h5" if "-1" in more[0] else "showers.h5")), *more)
        assert done.code == 2 and message in done.err, done


def test_only_generative_recipes_generate(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"generates nothing: it does not define draw_inputs\(\)"):
        settings.load_settings("jetfeatures", []).recipe.draw_inputs(np.arange(2), 1, {})
