"""The weights that a training starts from: `train.start_from`, `clew train --from`."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clew import storage
from clew.errors import ConfigError, RunError, list_names
from clew.runs import Run
from clew.runs.folder import find_run_path, why_no_checkpoint
from clew.storage import models

_ENDINGS = (".safetensors", ".pt", ".pth")


def find_weights(source: str | Path | Run, weights: str = "best") -> str:
    """Return the file with the weights of a run, of a model in a store, or of a file.

    Args:
        source: A run, its folder or its name, a model of `clew model list`, a model in a store (`s3://...`), or a file
            with the weights of a torch module (.safetensors, or .pt and .pth of `torch.save(model.state_dict(), ...)`).
        weights: Which weights of a run: "best" or "last".

    Raises:
        ConfigError: It is none of these.
        RunError: The run has no weights.
    """
    if isinstance(source, Run):
        return _of_run(source, weights)
    if storage.is_url(str(source)):
        return _of_run(models.open_run(source), weights)
    path = storage.local_path(str(source))
    if path.suffix in _ENDINGS and path.is_file():
        return str(path.absolute())
    if path.is_file():
        hint = f"use a run or a file {', '.join(_ENDINGS)}; a whole model goes to --model"
        raise ConfigError(f"--from {source}: not a file of weights; {hint}")
    run_path = find_run_path(path)
    return _of_run(Run.open(run_path) if run_path.exists() else models.open_run(str(source)), weights)


def load_weights(model: Any, path: Path) -> None:
    """Load the weights of a file into a model.

    Raises:
        RunError: The file is missing, damaged, or of another model.
    """
    from clew.training import checkpoint

    if path.suffix == ".safetensors":
        checkpoint.load(model, path)
        return
    import torch

    try:
        state = torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:  # torch raises many kinds of error for another file
        reason = str(error).partition("\n")[0]
        raise RunError(f"{path}: not a file of torch.save(model.state_dict(), ...): {reason}") from error
    if not (isinstance(state, dict) and all(_is_weight(*item) for item in state.items())):
        raise RunError(f"{path}: not a file of torch.save(model.state_dict(), ...): it holds other things than tensors")
    checkpoint.load_into(model, state, path)


def freeze(model: Any, patterns: Sequence[str]) -> None:
    """Exclude the parameters whose names match a pattern from the training.

    Raises:
        ConfigError: A pattern matches no parameter, or no parameter is left to train.
    """
    names = [name for name, _ in model.named_parameters()]
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            known = list_names(names, pattern)
            raise ConfigError(f"train.freeze '{pattern}': no parameter has such a name; there are {known}")
    for name, parameter in model.named_parameters():
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
            parameter.requires_grad_(False)
    if patterns and not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigError(f"train.freeze {', '.join(patterns)}: no parameter is left to train")


def _is_weight(name: object, value: object) -> bool:
    from torch import Tensor

    return isinstance(name, str) and isinstance(value, Tensor)


def _of_run(run: Run, weights: str) -> str:
    path = run.checkpoint(weights)
    if not path.is_file():
        raise RunError(f"{run.path}: no weights to start from yet (no {path.name}); {why_no_checkpoint(path)}")
    return str(path.absolute())
