"""Exported programs of torch as models to train."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import clew
from clew.errors import ConfigError
from clew.models.torch_program import TrainableProgram
from tests.training import validations, weights


def network() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(3, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 2))


def exported(path: Path, *, train: bool = False, dynamic: bool = True) -> Path:
    shapes: Any = ({0: torch.export.Dim.DYNAMIC},) if dynamic else None
    torch.export.save(torch.export.export(network().train(train), (torch.randn(6, 3),), dynamic_shapes=shapes), path)
    return path


def data() -> tuple[Any, Any]:
    x = np.random.default_rng(1).normal(size=(400, 3)).astype(np.float32)
    return x, (x[:, 0] * x[:, 1] > 0).astype(np.int64)


@pytest.mark.parametrize("train", [False, True], ids=["exported in eval", "exported in train"])
def test_it_follows_train_and_eval(train: bool, tmp_path: Path) -> None:
    program, reference = TrainableProgram(exported(tmp_path / "net.pt2", train=train)), network()
    x = torch.randn(50, 3)
    torch.manual_seed(0)
    output = program.train()(x)
    torch.manual_seed(0)
    torch.testing.assert_close(output, reference.train()(x))
    running = dict(program.named_buffers())["graph.1.running_mean"]
    torch.testing.assert_close(running, reference[1].running_mean)  # type: ignore[index]
    torch.testing.assert_close(program.eval()(x), reference.eval()(x))


@pytest.mark.parametrize("settings", [{}, {"workers": 2}, {"workers": 2, "strategy": "sharded"}])
def test_it_trains_and_is_evaluated(settings: dict[str, Any], tmp_path: Path) -> None:
    path = exported(tmp_path / "net.pt2")
    run = clew.train(
        path, data(), output=tmp_path / "run", epochs=8, batch_size=40, threads=1, optimizer={"lr": 0.02}, **settings
    )
    assert validations(run)[-1]["accuracy"] > 0.8
    assert clew.evaluate(run).metrics["loss"].value == pytest.approx(min(v["loss"] for v in validations(run)), rel=1e-3)
    assert {name.removeprefix("graph.") for name in weights(run)} == network().state_dict().keys()


def test_a_program_for_one_batch_size_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"was exported for batches of 6 only; export it with dynamic_shapes"):
        clew.train(exported(tmp_path / "net.pt2", dynamic=False), data(), output=tmp_path / "run")
    (tmp_path / "bad.pt2").write_text("nothing")
    with pytest.raises(ConfigError, match="not an exported program of torch"):
        clew.train(tmp_path / "bad.pt2", data(), output=tmp_path / "run")
