"""Weights and states on disk: written under another name first, read without running anybody's code."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from clew.core.files import atomic
from clew.errors import DataError, RunError
from clew.runs import Run

FORMAT = 2


def save(weights: Mapping[str, Tensor], path: Path, *, facts: Mapping[str, Any]) -> Path:
    """Write parameters and buffers; `facts` travel in the file's header. Equal weights make equal bytes.

    Raises:
        DataError: the disk is full or cannot be written; what was there stays.
    """
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    try:
        with atomic(path) as temporary:
            save_file(state, temporary, metadata={"clew": json.dumps(dict(facts))})  # one key: their order is not kept
    except (OSError, SafetensorError) as error:
        raise DataError(f"{path}: cannot be written ({error})") from error
    return path


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
    load_into(model, state, path)


def load_into(model: nn.Module, state: dict[str, Any], path: Path) -> None:
    """Put weights into a model.

    Raises:
        RunError: they are of another one; the first difference is named.
    """
    check_same_model(model.state_dict(), state, path)
    model.load_state_dict(state)


def check_same_model(wanted: Mapping[str, Tensor], state: Mapping[str, Tensor], path: Path) -> None:
    """Whether weights are those of a model with these.

    Raises:
        RunError: they are of another one; the first difference is named.
    """
    for name in sorted(wanted.keys() | state.keys()):
        mine = tuple(wanted[name].shape) if name in wanted else "nothing"
        theirs = tuple(state[name].shape) if name in state else "nothing"
        if mine != theirs:
            raise RunError(f"{path}: weights of another model: '{name}' is {theirs} there, {mine} here")


class CheckpointSaver:
    """Writes checkpoints in a thread while training goes on."""

    def __init__(self, run: Run, keep: int) -> None:
        self._run, self._keep = run, keep
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._under_way: list[tuple[Future[Path], dict[str, int]]] = []

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Copy a state to go on from, and begin to write it."""
        facts = {"epoch": state["place"][1], "step": step}
        self._begin(facts, save_state, self._run, step, _copied(state), keep=self._keep)

    def keep(self, weights: Mapping[str, Tensor], names: Sequence[str], facts: dict[str, int]) -> None:
        """Copy weights, and begin to write them under each of these names."""
        copied = _copied(weights)
        for name in names:
            self._begin(facts, save, copied, self._run.checkpoint(name), facts=facts)

    def lend(
        self,
        weights: Mapping[str, Tensor],
        path: Path,
        facts: dict[str, int],
        then: Callable[[Path, dict[str, int]], None],
    ) -> None:
        """Copy weights, begin to write them, and call `then` when they are there."""

        def write(copied: Mapping[str, Tensor]) -> Path:
            then(save(copied, path, facts=facts), facts)
            return path

        self._begin(facts, write, _copied(weights))

    def promote(self, path: Path, *, best: bool, facts: dict[str, int]) -> None:
        """Make a file the last weights, and the best ones too if they are."""
        if not path.exists():  # promoted before the run was killed and taken up again
            return
        if best:
            self._begin(facts, _copy, path, self._run.checkpoint("best")).result()
        self._begin(facts, path.replace, self._run.checkpoint("last"))

    def finished(self, *, wait: bool) -> Iterator[tuple[Path, dict[str, int]]]:
        """The files that are now whole and were not named before; what went wrong with one is raised here."""
        while self._under_way and (wait or self._under_way[0][0].done()):
            done, facts = self._under_way.pop(0)
            yield done.result(), facts

    def close(self) -> None:
        """Let all writes end; forget what comes of them."""
        self._pool.shutdown()

    def _begin(self, told: dict[str, int], write: Callable[..., Path], *arguments: Any, **options: Any) -> Future[Path]:
        begun = self._pool.submit(write, *arguments, **options)
        self._under_way.append((begun, told))
        return begun


def _copy(source: Path, to: Path) -> Path:
    with atomic(to) as temporary:
        shutil.copyfile(source, temporary)
    return to


def _copied(state: Any) -> Any:
    """The same with every tensor copied to memory that nobody else changes."""
    if isinstance(state, Tensor):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, Mapping):
        return {name: _copied(value) for name, value in state.items()}
    return [_copied(value) for value in state] if isinstance(state, (list, tuple)) else state


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
