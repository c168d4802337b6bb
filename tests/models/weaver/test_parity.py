"""A recipe of `clew init --from-weaver` gives the arrays, labels, weights and losses of weaver itself."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import clew
from clew.data.dataset.batch import to_batch
from clew.recipe import find
from clew.transforms import fit
from tests.cli import done
from tests.models.weaver import AK8, TOP, run_weaver, write_jets

pytest.importorskip("weaver", reason="weaver-core is not installed")

PARTICLE_NET = """
from torch import nn
from weaver.nn.model.ParticleNet import ParticleNet


class Tagger(nn.Module):
    def __init__(self, inputs, classes):
        super().__init__()
        self.inner = ParticleNet(inputs, classes, conv_params=[(4, (8, 8))], fc_params=[(8, 0.1)])

    def forward(self, points, features, mask):
        return self.inner(points, features, mask)


def get_model(data_config, **kwargs):
    return Tagger(len(data_config.input_dicts["pf_features"]), len(data_config.label_value)), {}
"""
REGRESSION = """
import torch
from torch import nn


class Mean(nn.Module):
    def __init__(self, inputs):
        super().__init__()
        self.last = nn.Linear(inputs, 1)

    def forward(self, points, features, mask):
        return self.last((features * mask).mean(dim=2))


class LogCosh(nn.L1Loss):
    def forward(self, input, target):
        values = torch.log(torch.cosh((input - target) / 50))
        return values if self.reduction == "none" else values.mean()


def get_model(data_config, **kwargs):
    return Mean(len(data_config.input_dicts["pf_features"])), {}


def get_loss(data_config, **kwargs):
    return LogCosh()
"""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    monkeypatch.chdir(tmp_path)
    return [write_jets(tmp_path / "train_0.root", 300, 1), write_jets(tmp_path / "train_1.root", 250, 2)]


def convert(settings: dict[str, Any] | str, network: str = "", name: str = "jets") -> clew.Recipe:
    """The recipe that `clew init` makes of a configuration. Networks of one process need different names."""
    Path("jets.yaml").write_text(settings if isinstance(settings, str) else yaml.safe_dump(settings, sort_keys=False))
    if network:
        Path("network.py").write_text(network)
    for path in (f"{name}.py", f"{name}_network.py"):
        Path(path).unlink(missing_ok=True)
    done("init", name, "--from-weaver", "jets.yaml", *(["network.py"] if network else []))
    return find(f"{name}.py")()


def prepared(recipe: clew.Recipe, files: list[Path]) -> clew.Table:
    """The samples of the files, after transforms that were fitted to them."""
    chunks = [table for file in files for table in recipe.read(str(file))]
    transforms = fit(recipe.transforms(), lambda: chunks)
    samples = []
    for table in chunks:
        for transform in transforms:
            table = transform(table)
        samples.append(recipe.prepare(table))
    return clew.concat(samples)


def assert_same(samples: clew.Table, original: Any) -> None:
    names = [name for name in original.files if name != "loss"]
    assert len(names) > 4
    for name in names:
        column = samples.fixed(name.rpartition(":")[2])
        np.testing.assert_array_equal(column, original[name], err_msg=name)
        assert ":" in name or column.dtype == original[name].dtype == np.float32


@pytest.mark.parametrize("settings", [TOP, AK8], ids=["top", "ak8"])
def test_inputs_labels_and_observers_are_weavers_to_the_last_bit(settings: str, files: list[Path]) -> None:
    samples = prepared(convert(settings), files)
    original = run_weaver(Path("jets.yaml").absolute(), files)
    assert len(samples) == 550 if settings is TOP else 300 < len(samples) < 450
    assert_same(samples, original)


def test_automatic_scaling_of_all_events_is_weavers(files: list[Path]) -> None:
    settings = yaml.safe_load(TOP)
    settings["preprocess"] = {"method": "auto", "data_fraction": 1.0}
    settings["inputs"]["pf_features"]["vars"] = ["part_pt_log", ["part_deltaR", "auto"], "part_energy", "part_deta"]
    settings["inputs"]["pf_points"]["vars"] = ["part_deta", "part_dphi"]
    settings["inputs"]["pf_mask"]["vars"] = [["part_mask", None]]
    samples = prepared(convert(settings), files)
    original = run_weaver(Path("jets.yaml").absolute(), files, training=True)
    for name in ("pf_points", "pf_features", "pf_mask"):
        np.testing.assert_allclose(samples.fixed(name), original[name], rtol=2e-6, atol=2e-6)


def test_a_configuration_that_weaver_completed_is_used_as_it_is(files: list[Path]) -> None:
    settings = yaml.safe_load(AK8)
    settings["preprocess"] = {"method": "auto", "data_fraction": 0.5}
    Path("jets.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
    original = run_weaver(Path("jets.yaml").absolute(), files, training=True)
    [completed] = Path().glob("of_weaver.*.auto.yaml")
    assert_same(prepared(convert(completed.read_text()), files), original)


@pytest.mark.long
def test_weights_are_proportional_to_weavers(files: list[Path]) -> None:
    bases: tuple[dict[str, str], ...] = ({}, {"reweight_basewgt": "genweight"})
    variants = list(itertools.product(("flat", "ref"), bases, (True, False)))
    for number, (method, base, discard) in enumerate(variants):
        settings = yaml.safe_load(AK8)
        settings["weights"] |= {"reweight_method": method, "reweight_discard_under_overflow": discard, **base}
        settings["weights"]["reweight_vars"]["jet_pt"] = [250, 300, 400, 600, 900]
        Path(f"weights{number}.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
    Path("jets.yaml").write_text(AK8)
    run_weaver(Path("jets.yaml").absolute(), files, others=[Path(f"weights{n}.yaml").absolute() for n in range(8)])
    distinct = set()
    for number, variant in enumerate(variants):
        [completed] = Path().glob(f"weights{number}.*.auto.yaml")
        own = prepared(convert(Path(f"weights{number}.yaml").read_text()), files).weights
        of_weaver = prepared(convert(completed.read_text()), files).weights
        assert own.mean() == pytest.approx(1) and len(np.unique(own.round(6))) > 5
        np.testing.assert_allclose(own, of_weaver, rtol=1e-4, err_msg=str(variant))
        distinct.add(own.tobytes())
    assert len(distinct) == len(variants)


def test_precomputed_weights_are_the_product_of_columns(files: list[Path]) -> None:
    settings = {
        **yaml.safe_load(TOP),
        "weights": {"use_precomputed_weights": True, "weight_branches": ["genweight", "jet_pt"]},
    }
    settings["observers"] += ["genweight"]
    samples = prepared(convert(settings), files)
    product = samples.fixed("genweight").astype(np.float64) * samples.fixed("jet_pt")
    np.testing.assert_allclose(samples.weights, product / product.mean(), rtol=1e-6)


@pytest.mark.parametrize("network", [PARTICLE_NET, REGRESSION], ids=["particlenet", "regression"])
def test_the_loss_of_a_batch_is_weavers(network: str, files: list[Path]) -> None:
    settings = yaml.safe_load(TOP)
    if network is REGRESSION:
        settings["labels"] = {"type": "custom", "value": {"target": "np.where(label == 1, jet_mass, 0.5*jet_mass)"}}
    recipe = convert(settings, network, "mass" if network is REGRESSION else "particlenet")
    original = run_weaver(Path("jets.yaml").absolute(), files, network=Path("network.py").absolute())
    samples = prepared(recipe, files)
    model = recipe.model()
    model.load_state_dict(torch.load("weights.pt"))
    batch = to_batch(samples.slice(0, 64), recipe.columns)
    with torch.no_grad():
        losses = recipe.loss(recipe.forward(model.eval(), batch), batch)
    assert isinstance(losses, torch.Tensor) and losses.shape == (64,)
    assert losses.mean().item() == pytest.approx(float(original["loss"]), rel=1e-6)
