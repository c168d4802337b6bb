"""Weights on disk: safetensors, written under another name first, read without running anybody's code."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from clew.errors import RunError
from clew.files import atomic


def save(model: nn.Module, path: Path, *, facts: dict[str, str]) -> None:
    """Write parameters and buffers; `facts` travel in the file's header."""
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    with atomic(path) as temporary:
        save_file(state, temporary, metadata=facts)


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
    wanted = model.state_dict()
    for name in sorted(wanted.keys() | state.keys()):
        mine = tuple(wanted[name].shape) if name in wanted else "nothing"
        theirs = tuple(state[name].shape) if name in state else "nothing"
        if mine != theirs:
            raise RunError(f"{path}: weights of another model: '{name}' is {theirs} there, {mine} here")
    model.load_state_dict(state)
