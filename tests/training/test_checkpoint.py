"""Weights are restored exactly, or an error says why not."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

from clew import Run
from clew.errors import RunError
from clew.training import checkpoint
from clew.training.start_weights import load_weights


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


def test_missing_best_weights_beside_the_last_ones_are_explained(tmp_path: Path) -> None:
    checkpoint.save(net().state_dict(), tmp_path / "last.safetensors", facts={})
    with pytest.raises(RunError, match=r"no validation chose the best weights.*; use the weights 'last'"):
        checkpoint.load(net(), tmp_path / "best.safetensors")


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


def state(value: float) -> dict[str, Any]:
    return {"place": [0, 1], "weights": {"w": torch.full((3,), value)}}


def test_a_state_of_an_older_format_is_not_read(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", config={}, environment={})
    first, second = (checkpoint.save_state(run, step, state(1.0), keep=9) for step in (5, 7))
    torch.save({**torch.load(second, weights_only=True), "format": checkpoint.FORMAT - 1}, second)
    assert checkpoint.load_state(run)[1] == first
    torch.save({**torch.load(first, weights_only=True), "format": checkpoint.FORMAT - 1}, first)
    with pytest.raises(RunError, match="no checkpoint to resume from"):
        checkpoint.load_state(run)


def test_a_checkpoint_holds_the_weights_of_its_step_however_late_it_is_written(tmp_path: Path) -> None:
    """Training changes the weights in place while a thread writes them."""
    run = Run.create(tmp_path / "run", config={}, environment={})
    saver, written, saved = checkpoint.CheckpointSaver(run, keep=2), threading.Event(), state(1.0)

    def wait(path: Path, facts: dict[str, int]) -> None:
        written.wait(60)

    saver.save_and_notify({}, run.path / "first.safetensors", {}, wait)
    saver.save(3, saved)
    saver.save_weights(saved["weights"], ["last"], {"epoch": 0, "step": 3})
    saved["weights"]["w"].fill_(2.0)
    written.set()
    assert len(list(saver.finished(wait=True))) == 3
    saver.close()
    assert checkpoint.load_state(run)[0]["weights"]["w"].tolist() == [1.0] * 3
    assert load_file(run.checkpoint("last"))["w"].tolist() == [1.0] * 3


@pytest.mark.parametrize("content", ["text", {"weight": "text"}, {1: torch.ones(2, 3)}, [torch.ones(2)]])
def test_a_file_of_other_things_than_weights_is_refused_in_one_line(content: Any, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "a.pt")
    with pytest.raises(RunError, match="it holds other things than tensors"):
        load_weights(nn.Linear(3, 2), tmp_path / "a.pt")


def test_tensors_that_a_model_cannot_hold_are_refused_in_one_line(tmp_path: Path) -> None:
    state = {name: value.to_sparse() for name, value in nn.Linear(3, 2).state_dict().items()}
    torch.save(state, tmp_path / "a.pt")
    with pytest.raises(RunError, match="damaged weights, or those of another model"):
        load_weights(nn.Linear(3, 2), tmp_path / "a.pt")
