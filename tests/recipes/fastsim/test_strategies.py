"""The adversarial networks train under every strategy: losses of both are recorded, and both learn."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import clew
from clew import Dataset, settings
from clew.training.strategy_table import ASYNCHRONOUS
from tests.recipes.fastsim.test_recipe import SMALL, write_grid

pytestmark = pytest.mark.timeout(240)
CASES: dict[str, dict[str, Any]] = {
    "single": {},
    "allreduce": {"workers": 2},
    "sharded": {"workers": 2},
    **{name: {"asynchronous": {"masters": 0, "sync_every": 2}} for name in ASYNCHRONOUS},
}
"""One process is master and worker of an asynchronous rule: the contract suites of the rules use several."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("showers")
    loaded = settings.load_settings("fastsim", SMALL)
    files = [write_grid(folder / "grid.h5", 120)]
    return clew.prepare(loaded.recipe, loaded.prepare, input=files, output=str(folder / "data"), workers=1)


@pytest.mark.parametrize("strategy", CASES)
def test_both_networks_learn(strategy: str, data: Dataset, tmp_path: Path) -> None:
    loaded = settings.load_settings("fastsim", [*SMALL, "train.epochs=1", "train.batch_size=16"])
    run = clew.train(
        loaded.recipe, data, config=loaded.train, output=tmp_path / "run", strategy=strategy, **CASES[strategy]
    )
    assert run.state == "finished"
    step = run.last("step")
    assert step is not None and step["loss"].keys() == {"discriminator", "generator"}
    assert all(math.isfinite(loss) for loss in step["loss"].values())
    torch.manual_seed(loaded.train.seed)
    before, after = loaded.recipe.model().state_dict(), load_file(run.checkpoint("last"))
    changed = {name.split(".")[0] for name, tensor in after.items() if not torch.equal(tensor, before[name])}
    assert changed == {"discriminator", "generator", "log_range"}
