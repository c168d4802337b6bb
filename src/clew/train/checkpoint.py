"""Weights and states on disk: written under another name first, read without running anybody's code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from clew.errors import DataError, RunError
from clew.files import atomic
from clew.ledger import Run

FORMAT = 1


def save(model: nn.Module, path: Path, *, facts: dict[str, Any]) -> None:
    """Write parameters and buffers; `facts` travel in the file's header. Equal weights make equal bytes."""
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    with atomic(path) as temporary:
        save_file(state, temporary, metadata={"clew": json.dumps(facts)})  # one key: their order is not kept


def load(model: nn.Module, path: Path) -> None:
    """Read weights into a model.

    Raises:
        RunError: the file is missing, damaged, or of another model.
    """
    try:
        state = load_file(path)
    except FileNotFoundError:
        raise RunError(f"{path}: no such checkpoint; did the run finish its first epoch?") from None
    except (SafetensorError, OSError) as error:
        raise RunError(f"{path}: damaged checkpoint ({error})") from error
    fill(model, state, path)


def fill(model: nn.Module, state: dict[str, Any], path: Path) -> None:
    """Put weights into a model.

    Raises:
        RunError: they are of another one; the first difference is named.
    """
    wanted = model.state_dict()
    for name in sorted(wanted.keys() | state.keys()):
        mine = tuple(wanted[name].shape) if name in wanted else "nothing"
        theirs = tuple(state[name].shape) if name in state else "nothing"
        if mine != theirs:
            raise RunError(f"{path}: weights of another model: '{name}' is {theirs} there, {mine} here")
    model.load_state_dict(state)


def save_state(run: Run, step: int, state: dict[str, Any], *, keep: int) -> Path:
    """Write all a training needs to go on from a step, and remove all but the newest `keep` such files.

    Raises:
        DataError: the disk is full or cannot be written; what was there stays.
    """
    path = run.state_file(step)
    try:
        with atomic(path) as temporary:
            torch.save({"format": FORMAT, **state}, temporary)
    except (OSError, RuntimeError) as error:
        raise DataError(f"{path}: cannot be written ({error})") from error
    for old in run.states()[:-keep]:
        old.unlink(missing_ok=True)
    return path


def load_state(run: Run) -> tuple[dict[str, Any], Path, list[Path]]:
    """The newest state that can be read, its file, and the newer ones that could not.

    Raises:
        RunError: there is none.
    """
    damaged: list[Path] = []
    for path in reversed(run.states()):
        try:
            state = torch.load(path, weights_only=True, map_location="cpu")
            if state["format"] == FORMAT:
                return state, path, damaged
        except Exception:  # torch raises many kinds for a file cut short or altered
            damaged.append(path)
    told = f" ({len(damaged)} damaged)" if damaged else ""
    raise RunError(f"{run.path}: no checkpoint to go on from{told}")
