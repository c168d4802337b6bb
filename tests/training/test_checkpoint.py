"""Weights are restored exactly, or an error says why not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import nn

from clew.errors import RunError
from clew.training import checkpoint


def net(inputs: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 4), nn.BatchNorm1d(4))


def test_parameters_and_buffers_come_back_to_the_bit(tmp_path: Path) -> None:
    saved, loaded = net(), net()
    saved(torch.randn(8, 3))
    checkpoint.save(saved.state_dict(), tmp_path / "w.safetensors", facts={"epoch": 3})
    checkpoint.load(loaded, tmp_path / "w.safetensors")
    assert all(torch.equal(tensor, loaded.state_dict()[name]) for name, tensor in saved.state_dict().items())
    with safe_open(tmp_path / "w.safetensors", "pt") as file:
        assert json.loads(file.metadata()["clew"]) == {"format": 1, "epoch": 3}


def test_saving_again_replaces_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    for _ in range(2):
        model = net()
        checkpoint.save(model.state_dict(), path, facts={})
    loaded = net()
    checkpoint.load(loaded, path)
    torch.testing.assert_close(loaded.state_dict(), model.state_dict())
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"gone\.safetensors: no such checkpoint; did the run finish its first epoch\?"):
        checkpoint.load(net(), tmp_path / "gone.safetensors")


@pytest.mark.parametrize("keep", [0, 4, 200])
def test_a_damaged_checkpoint_is_named(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "w.safetensors"
    checkpoint.save(net().state_dict(), path, facts={})
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(RunError, match=r"w\.safetensors: damaged checkpoint"):
        checkpoint.load(net(), path)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (net(5), r"weights of another model: '0\.weight' is \(4, 3\) in the file, \(4, 5\) in the model"),
        (
            nn.Sequential(nn.Linear(3, 4)),
            r"weights of another model: '1\.bias' is \(4,\) in the file, nothing in the model",
        ),
        (nn.Linear(2, 2), r"weights of another model: '0\.bias' is \(4,\) in the file, nothing in the model"),
    ],
)
def test_weights_of_another_model_are_refused_and_change_nothing(
    tmp_path: Path, other: nn.Module, message: str
) -> None:
    checkpoint.save(net().state_dict(), tmp_path / "w.safetensors", facts={})
    before = {name: tensor.clone() for name, tensor in other.state_dict().items()}
    with pytest.raises(RunError, match=message):
        checkpoint.load(other, tmp_path / "w.safetensors")
    assert all(torch.equal(tensor, before[name]) for name, tensor in other.state_dict().items())
