"""Weights and training states on disk.

Files are written under a temporary name first. Reading them never runs code that they contain.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from clew.core.disk_errors import disk_reason
from clew.core.files import atomic_path
from clew.core.format_version import check_format_version
from clew.errors import DataError, RunError
from clew.models.estimators import EstimatorModule
from clew.runs import Run
from clew.runs.folder import why_no_checkpoint
from clew.training.config import TrainConfig

FORMAT = 2
"""Version of the state files. It changes when an older clew could not read a new file."""
WEIGHTS_FORMAT = 1
"""Version of the files of weights, in their header."""


def save(weights: Mapping[str, Tensor], path: Path, *, facts: Mapping[str, Any]) -> Path:
    """Write parameters and buffers. Equal weights give equal bytes.

    Args:
        weights: Tensors by name.
        path: The file.
        facts: Written into the header of the file.

    Raises:
        DataError: The disk is full or cannot be written. An existing file is left unchanged.
    """
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    try:
        with atomic_path(path) as temporary:
            # one key: safetensors does not preserve the order of several
            save_file(state, temporary, metadata={"clew": json.dumps({"format": WEIGHTS_FORMAT, **facts})})
    except (OSError, SafetensorError) as error:
        raise DataError(f"{path}: cannot be written: {disk_reason(error) or error}") from error
    return path


def load(model: nn.Module, path: Path) -> None:
    """Read weights into a model.

    Raises:
        RunError: The file is missing, damaged, of another model, or was written by a newer clew.
    """
    try:
        check_format_version(path, _weights_format(path), WEIGHTS_FORMAT, RunError)
        state = load_file(path)
    except FileNotFoundError:
        raise RunError(f"{path}: no such checkpoint; {why_no_checkpoint(path)}") from None
    except (SafetensorError, OSError) as error:
        raise RunError(f"{path}: damaged checkpoint ({error})") from error
    load_into(model, state, path)


def _weights_format(path: Path) -> object:
    """Return the version in the header of a file of weights; None if it has none."""
    with safe_open(path, "pt") as file:
        header = (file.metadata() or {}).get("clew", "{}")
    try:
        facts = json.loads(header)
    except ValueError:
        return None
    return facts.get("format") if isinstance(facts, dict) else None


def load_into(model: nn.Module, state: dict[str, Any], path: Path) -> None:
    """Load weights into a model.

    Raises:
        RunError: The weights are of another model. The message names the first difference.
    """
    if isinstance(model, EstimatorModule):
        model.load_fitted(state, path)
        return
    check_same_model(model.state_dict(), state, path)
    try:
        model.load_state_dict(state)
    except (RuntimeError, TypeError, NotImplementedError) as error:  # for instance sparse tensors
        reason = str(error).partition("\n")[0]
        raise RunError(f"{path}: damaged weights, or those of another model ({reason})") from error


def check_same_model(expected: Mapping[str, Tensor], state: Mapping[str, Tensor], path: Path) -> None:
    """Check that weights have the names and shapes of a model.

    Args:
        expected: The state of the model.
        state: The weights.
        path: The file of the weights, for the message.

    Raises:
        RunError: They differ. The message names the first difference.
    """
    for name in sorted(expected.keys() | state.keys()):
        model_shape = tuple(expected[name].shape) if name in expected else "nothing"
        file_shape = tuple(state[name].shape) if name in state else "nothing"
        if model_shape != file_shape:
            raise RunError(
                f"{path}: weights of another model: '{name}' is {file_shape} in the file, {model_shape} in the model"
            )


class CheckpointSaver:
    """Writes checkpoints in a thread while training continues."""

    def __init__(self, run: Run, keep: int) -> None:
        self._run, self._keep = run, keep
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._unfinished: list[tuple[Future[Path], dict[str, int]]] = []

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Copy a state from which the training can continue, and start to write it."""
        facts = {"epoch": state["place"][1], "step": step}
        self._start(facts, save_state, self._run, step, _copy_tensors(state), keep=self._keep)

    def save_weights(self, weights: Mapping[str, Tensor], names: Sequence[str], facts: dict[str, int]) -> None:
        """Copy weights, and start to write them under each of these names."""
        copy = _copy_tensors(weights)
        for name in names:
            self._start(facts, save, copy, self._run.checkpoint(name), facts=facts)

    def save_and_notify(
        self,
        weights: Mapping[str, Tensor],
        path: Path,
        facts: dict[str, int],
        notify: Callable[[Path, dict[str, int]], None],
    ) -> None:
        """Copy weights, start to write them, and call `notify` with the file and the facts when it is complete."""

        def write(copy: Mapping[str, Tensor]) -> Path:
            notify(save(copy, path, facts=facts), facts)
            return path

        self._start(facts, write, _copy_tensors(weights))

    def promote(self, path: Path, *, best: bool, facts: dict[str, int]) -> None:
        """Turn a file into the last weights and, with `best`, also into the best ones."""
        if not path.exists():  # it was promoted before the run was killed and resumed
            return
        if best:
            self._start(facts, _copy_file, path, self._run.checkpoint("best")).result()
        self._start(facts, path.replace, self._run.checkpoint("last"))

    def finished(self, *, wait: bool) -> Iterator[tuple[Path, dict[str, int]]]:
        """Yield the files that are complete now and were not yielded before. An error of a write is raised here."""
        while self._unfinished and (wait or self._unfinished[0][0].done()):
            done, facts = self._unfinished.pop(0)
            yield done.result(), facts

    def close(self) -> None:
        """Wait for all writes to end, and ignore their results."""
        self._pool.shutdown()

    def _start(
        self, label: dict[str, int], write: Callable[..., Path], *arguments: Any, **options: Any
    ) -> Future[Path]:
        future = self._pool.submit(write, *arguments, **options)
        self._unfinished.append((future, label))
        return future


def _copy_file(source: Path, to: Path) -> Path:
    with atomic_path(to) as temporary:
        shutil.copyfile(source, temporary)
    return to


def _copy_tensors(state: Any) -> Any:
    """Return a copy in which every tensor is in memory of its own, on the CPU."""
    if isinstance(state, Tensor):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, Mapping):
        return {name: _copy_tensors(value) for name, value in state.items()}
    return [_copy_tensors(value) for value in state] if isinstance(state, (list, tuple)) else state


def save_state(run: Run, step: int, state: dict[str, Any], *, keep: int) -> Path:
    """Write what a training needs to continue from a step, and remove all but the newest `keep` such files.

    Raises:
        DataError: The disk is full or cannot be written. Existing files are left unchanged.
    """
    path = run.state_file(step)
    try:
        with atomic_path(path) as temporary:
            torch.save({"format": FORMAT, **state}, temporary)
    except (OSError, RuntimeError) as error:
        raise DataError(f"{path}: cannot be written: {disk_reason(error) or error}") from error
    for old in run.states()[:-keep]:
        old.unlink(missing_ok=True)
    return path


def load_state(run: Run) -> tuple[dict[str, Any], Path, list[Path]]:
    """Return the newest state that can be read, its file, and the newer files that cannot be read.

    Raises:
        RunError: There is none, or a newer clew wrote the newest one.
    """
    damaged: list[Path] = []
    for path in reversed(run.states()):
        try:
            state = torch.load(path, weights_only=True, map_location="cpu")
            version = state["format"]
        except Exception:  # torch raises many kinds of error for a damaged file
            damaged.append(path)
            continue
        check_format_version(path, version, FORMAT, RunError)
        if version == FORMAT:
            return state, path, damaged
    note = f" ({len(damaged)} damaged)" if damaged else ""
    raise RunError(f"{run.path}: no checkpoint to resume from{note}")


def prepare_to_train_longer(run: Run, before: TrainConfig, now: TrainConfig) -> None:
    """Change the settings and the newest state of a finished run, so that it continues when it is resumed.

    Args:
        run: The finished run.
        before: The settings with which it finished.
        now: The settings with which it is to continue.

    Raises:
        RunError: There are not more epochs than before, or something else than the number of epochs has ended the run.
    """
    if now.epochs <= before.epochs:
        raise RunError(f"{run.path} is finished after {before.epochs} epochs; train it longer with --epochs N")
    limits = {"steps": now.steps, "minutes": now.minutes, "replicas": now.replicas}
    for name, value in limits.items():
        if value is not None:
            reason = f"with train.{name}={value:g} it cannot be trained longer"
            raise RunError(f"{run.path} is finished; {reason}; start a new run from its weights: --from {run.path}")
    state, path, _ = load_state(run)
    if state["over"]:  # ended by early stopping or a target, for example
        save_state(run, int(path.stem.rpartition("-")[2]), {**state, "over": ""}, keep=now.keep_checkpoints)
    run.save_settings(epochs=now.epochs)
