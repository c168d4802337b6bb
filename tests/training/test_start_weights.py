"""Parameters that are not trained: `train.freeze`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import clew
from clew.errors import ConfigError
from clew.training.config import TrainConfig
from clew.training.start_weights import freeze


def test_patterns_name_the_parameters_that_stay() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    freeze(model, ["0.*"])
    assert [name for name, each in model.named_parameters() if each.requires_grad] == ["1.weight", "1.bias"]


@pytest.mark.parametrize(("pattern", "message"), [("2.*", "no parameter has such a name"), ("*", "left to train")])
def test_patterns_that_match_nothing_or_everything_are_refused(pattern: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        freeze(nn.Linear(2, 1), [pattern])


def test_masters_and_replicas_refuse_it() -> None:
    for other in ({"strategy": "downpour", "workers": 2}, {"replicas": 2}):
        with pytest.raises(ValueError, match="freeze cannot be used"):
            TrainConfig.model_validate({"freeze": ["0.*"], **other})


def test_fine_tuning_keeps_frozen_weights_and_moves_the_others(tmp_path: Path) -> None:
    torch.manual_seed(1)
    x = torch.randn(200, 2).numpy()
    table = clew.Table({"x": x, "y": x.sum(axis=1)})
    model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
    common: dict[str, Any] = {"features": "x", "labels": "y", "loss": "mse", "epochs": 1}
    first = clew.train(model, table, output=tmp_path / "first", **common)
    before = load_file(first.checkpoint("best"))
    second = clew.train(model, table, output=tmp_path / "second", start_from=str(first.path), freeze=["0.*"], **common)
    after = load_file(second.checkpoint("last"))
    same = {name for name in before if torch.equal(before[name], after[name])}
    assert same == {"0.weight", "0.bias"}, sorted(before)
