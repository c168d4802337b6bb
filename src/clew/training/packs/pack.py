"""Runs trained together as far as they can be: grouped by what they share, the others one after the other."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import nn

from clew.core.background import repeated
from clew.core.files import write_text
from clew.data.dataset import Dataset
from clew.errors import ClewError, LeaseError, RunError, StoppedError
from clew.jobs.lease import Lease
from clew.jobs.rank_info import RankInfo
from clew.recipe import Recipe
from clew.runs import Run
from clew.runs.environment import allowed_cores, capture
from clew.training import checkpoint
from clew.training.api import run_settings
from clew.training.config import TrainConfig
from clew.training.loop import run_rank
from clew.training.packs import grouping, stacked_weights
from clew.training.packs.loop import PackLoop, RefusedError
from clew.training.packs.member import FAILED, FINISHED, LOST, STOPPED, Lane
from clew.training.stop_signal import StopSignal
from clew.training.training_data import default_device

_BEAT = 0.5
"""Seconds between two signs of life of runs whose turn has not come."""


def create(path: Path, recipe: Recipe, config: TrainConfig) -> Run:
    """A run's folder, as `clew.train` makes it."""
    run = Run.create(path, config=run_settings(recipe, config), environment=capture())
    write_text(run.dataset_file, (Dataset(config.dataset).path / "manifest.json").read_text())
    return run


def lane(run: Run, recipe: Recipe, config: TrainConfig, lease: Lease | None = None) -> Lane:
    """A run to be trained, from its newest state where there is one."""
    state = None
    if run.states():
        with contextlib.suppress(RunError):
            found, path, _ = checkpoint.load_state(run)
            state = {**found, "file": path.name}
    return Lane(run, recipe, config, lease, state)


def train_pack(lanes: Sequence[Lane], ended: Callable[[Lane], None], *, threads: int | None = None) -> None:
    """Train these runs to their ends; `ended` is called with each when it has, which its `code` tells.

    Those that share shapes and data are trained as one. One that cannot be packed is trained by itself, and a note in
    its records says why.
    """
    torch.set_num_threads(threads or lanes[0].config.threads or allowed_cores())
    device = default_device(0)
    waiting = list(lanes)
    with StopSignal(_limit(lanes)) as stop, repeated(partial(_beat, waiting), every=_BEAT, name="signs of life"):
        for members, reason in grouped(lanes):
            for each in members:
                waiting.remove(each)
            if stop.wanted:
                _leave(members, ended)
            elif reason:
                _apart(members, reason, stop, ended)
            else:
                _together(members, device, stop, ended)


def _limit(lanes: Sequence[Lane]) -> float | None:
    limits = [each.config.time_limit_minutes for each in lanes if each.config.time_limit_minutes is not None]
    return 60 * min(limits) if limits else None


def _beat(waiting: list[Lane]) -> None:
    """Give signs of life for runs whose turn has not come; those that train give their own."""
    for each in list(waiting):
        if each.lease is not None:
            each.lease.beat()


def grouped(lanes: Sequence[Lane]) -> list[tuple[list[Lane], str]]:
    """Runs that can be trained as one, and those that cannot, with the reason."""
    sets: dict[str, list[Lane]] = {}
    alone: list[tuple[list[Lane], str]] = []
    for each in lanes:
        reason = grouping.refusal(each.recipe, each.config)
        if reason:
            alone.append(([each], reason))
            continue
        place = "" if each.state is None else str(each.state["place"])
        sets.setdefault(grouping.settings_key(each.recipe, each.config) + place, []).append(each)
    return [*((members, "") for members in sets.values()), *alone]


def _together(lanes: Sequence[Lane], device: torch.device, stop: StopSignal, ended: Callable[[Lane], None]) -> None:
    """Models of one shape are trained as one, shape after shape."""
    shapes: dict[str, list[tuple[Lane, nn.Module]]] = {}
    for each in lanes:
        try:
            model = grouping.model_of(each.recipe, each.config)
            reason = grouping.model_refusal(model)
        except ClewError as error:
            model, reason = nn.Identity(), str(error)
        except Exception as error:  # of somebody's model: a run of its own says where it broke
            model, reason = nn.Identity(), f"{type(error).__name__}: {error}"
        if reason:
            _apart([each], reason, stop, ended)
        else:
            shapes.setdefault(stacked_weights.signature(model), []).append((each, model))
    for members in shapes.values():
        own = [each for each, _ in members]
        if stop.wanted:
            _leave(own, ended)
            continue
        try:
            _one(own, [model for _, model in members], device, stop, ended)
        except RefusedError as error:
            _apart(own, str(error), stop, ended)


def _one(
    lanes: list[Lane], models: list[nn.Module], device: torch.device, stop: StopSignal, ended: Callable[[Lane], None]
) -> None:
    with contextlib.closing(PackLoop(lanes, models, device, stop, ended)) as loop:
        loop.rehearse()
        for each in lanes:
            each.begin()
        try:
            loop.restore()
            loop.train()
        except BaseException as error:
            for each in loop.lanes:
                each.end(FAILED, str(error) or type(error).__name__, type(error).__name__)
                ended(each)
            if not isinstance(error, ClewError):
                raise


def _apart(lanes: Sequence[Lane], reason: str, stop: StopSignal, ended: Callable[[Lane], None]) -> None:
    """Train runs one after the other, as `clew train` does."""
    for each in lanes:
        if stop.wanted:
            _leave([each], ended)
            continue
        with each.run.writer("rank-0") as writer:
            writer.write("note", message=f"not packed: {reason}")
        each.code, each.message = _alone(each)
        if each.code == STOPPED and (each.lease is None or not each.lease.told):
            stop.ask()  # a signal, which it heard in our place
        ended(each)


def _alone(lane: Lane) -> tuple[int, str]:
    if grouping.handed(lane.recipe) is not None:
        told = "a model handed over as an object cannot be trained again and again; give it as file.py:name"
        lane.begin()
        lane.end(FAILED, told, "ConfigError")
        return FAILED, told
    try:
        run_rank(lane.run, lane.recipe, lane.config, RankInfo(), resume=lane.state is not None, lease=lane.lease)
    except StoppedError as error:
        return STOPPED, str(error)
    except LeaseError as error:
        return LOST, str(error)
    except Exception as error:  # it is in the run's records
        return FAILED, str(error)
    return FINISHED, ""


def _leave(lanes: Sequence[Lane], ended: Callable[[Lane], None]) -> None:
    for each in lanes:
        each.code, each.message = STOPPED, "stopped before its turn came"
        ended(each)
