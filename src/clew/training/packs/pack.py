"""Trains a list of runs: in packs where possible, the others one after the other."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import nn

from clew.core.background import run_repeatedly
from clew.core.files import write_text
from clew.data.dataset import Dataset
from clew.errors import ClewError, LeaseError, RunError, StoppedError
from clew.jobs.lease import Lease
from clew.jobs.rank_info import RankInfo
from clew.recipe import Recipe
from clew.recipe_errors import recipe_errors
from clew.runs import Run
from clew.runs.environment import allowed_cores, capture
from clew.training import checkpoint
from clew.training.api import run_settings
from clew.training.config import TrainConfig
from clew.training.device import select_device
from clew.training.loop import run_rank
from clew.training.packs import grouping, stacked_weights
from clew.training.packs.loop import PackLoop, PackRefusedError
from clew.training.packs.member import FAILED, FINISHED, LOST, STOPPED, PackMember
from clew.training.run_code import save_code
from clew.training.stop_signal import StopSignal
from clew.training.training_start import TrainingStart

OnEnd = Callable[[PackMember], None]
"""Called with each member when it has ended; its `code` and `message` are set."""
_LEASE_INTERVAL = 0.5
"""Seconds between two renewals of the leases of waiting runs."""


def create_run(path: Path, recipe: Recipe, config: TrainConfig) -> Run:
    """Create the folder of a run, as `clew.train` does."""
    run = Run.create(path, config=run_settings(recipe, config), environment=capture())
    write_text(run.dataset_file, (Dataset(config.dataset).path / "manifest.json").read_text())
    save_code(run, recipe)
    return run


def load_member(run: Run, recipe: Recipe, config: TrainConfig, lease: Lease | None = None) -> PackMember:
    """Return a run as a member of a pack, with its newest checkpoint if there is one."""
    state = None
    if run.states():
        with contextlib.suppress(RunError):
            saved, path, _ = checkpoint.load_state(run)
            state = {**saved, "file": path.name}
    return PackMember(run, recipe, config, lease, state)


def train_pack(members: Sequence[PackMember], on_end: OnEnd, *, threads: int | None = None) -> None:
    """Train runs to their ends.

    Runs with the same shapes, data and settings are trained as one pack. A run that cannot be packed is trained alone,
    and a note in its records gives the reason.

    Args:
        members: The runs.
        on_end: Called with each member when it has ended.
        threads: CPU threads; default: `train.threads` of the first run, or all cores.
    """
    torch.set_num_threads(threads or members[0].config.threads or allowed_cores())
    device = select_device(0, members[0].config.device)
    waiting = list(members)
    with (
        StopSignal(_time_limit(members)) as stop,
        run_repeatedly(partial(_renew_leases, waiting), every=_LEASE_INTERVAL, name="leases of waiting runs"),
    ):
        stop.can_save = True
        for group, reason in group_members(members):
            for member in group:
                waiting.remove(member)
            if stop.requested:
                _skip(group, on_end)
            elif reason:
                _train_separately(group, reason, stop, on_end)
            else:
                _train_by_shape(group, device, stop, on_end)


def _time_limit(members: Sequence[PackMember]) -> float | None:
    limits = [member.config.time_limit_minutes for member in members if member.config.time_limit_minutes is not None]
    return 60 * min(limits) if limits else None


def _renew_leases(waiting: list[PackMember]) -> None:
    """Renew the leases of runs that wait for their turn; a run that trains renews its own."""
    for member in list(waiting):
        if member.lease is not None:
            member.lease.beat()


def group_members(members: Sequence[PackMember]) -> list[tuple[list[PackMember], str]]:
    """Return the runs that can be trained together with '', and each other run with the reason why it cannot."""
    groups: dict[str, list[PackMember]] = {}
    separate: list[tuple[list[PackMember], str]] = []
    for member in members:
        reason = grouping.refusal_reason(member.recipe, member.config)
        if reason:
            separate.append(([member], reason))
            continue
        position = "" if member.state is None else str(member.state["place"])
        groups.setdefault(grouping.settings_key(member.recipe, member.config) + position, []).append(member)
    return [*((group, "") for group in groups.values()), *separate]


def _train_by_shape(members: Sequence[PackMember], device: torch.device, stop: StopSignal, on_end: OnEnd) -> None:
    """Train models of the same shape together, one shape after the other."""
    shapes: dict[str, list[tuple[PackMember, nn.Module]]] = {}
    for member in members:
        try:
            model = grouping.initial_model(member.recipe, member.config)
            reason = grouping.model_refusal_reason(model)
        except ClewError as error:
            model, reason = nn.Identity(), str(error)
        except Exception as error:  # of a user's model: a training of its own shows where it failed
            model, reason = nn.Identity(), f"{type(error).__name__}: {error}"
        if reason:
            _train_separately([member], reason, stop, on_end)
        else:
            shapes.setdefault(stacked_weights.model_signature(model), []).append((member, model))
    for same_shape in shapes.values():
        group = [member for member, _ in same_shape]
        if stop.requested:
            _skip(group, on_end)
            continue
        try:
            _train_stacked(group, [model for _, model in same_shape], device, stop, on_end)
        except PackRefusedError as error:
            _train_separately(group, str(error), stop, on_end)


def _train_stacked(
    members: list[PackMember], models: list[nn.Module], device: torch.device, stop: StopSignal, on_end: OnEnd
) -> None:
    with contextlib.closing(PackLoop(members, models, device, stop, on_end)) as loop:
        loop.rehearse()
        for member in members:
            member.begin()
        try:
            with recipe_errors():
                loop.restore()
                loop.train()
        except BaseException as error:
            for member in loop.members:
                member.end(FAILED, str(error) or type(error).__name__, type(error).__name__)
                on_end(member)
            if not isinstance(error, ClewError):
                raise


def _train_separately(members: Sequence[PackMember], reason: str, stop: StopSignal, on_end: OnEnd) -> None:
    """Train runs one after the other, as `clew train` does."""
    for member in members:
        if stop.requested:
            _skip([member], on_end)
            continue
        with member.run.writer("rank-0") as writer:
            writer.write("note", message=f"not packed: {reason}")
        member.code, member.message = _train_one(member)
        if member.code == STOPPED and (member.lease is None or not member.lease.stop_reason):
            stop.request()  # the signal reached the training of this run, and is meant for all
        on_end(member)


def _train_one(member: PackMember) -> tuple[int, str]:
    if grouping.model_object(member.recipe) is not None:
        message = "a model given as an object cannot be trained several times; give it as file.py:name"
        member.begin()
        member.end(FAILED, message, "ConfigError")
        return FAILED, message
    try:
        start = TrainingStart(member.recipe, member.config, resume=member.state is not None, lease=member.lease)
        run_rank(member.run, start, RankInfo())
    except LeaseError as error:  # before StoppedError, its base class: the other runs continue
        return LOST, str(error)
    except StoppedError as error:
        return STOPPED, str(error)
    except Exception as error:  # it is in the run's records
        return FAILED, str(error)
    return FINISHED, ""


def _skip(members: Sequence[PackMember], on_end: OnEnd) -> None:
    for member in members:
        member.code, member.message = STOPPED, "stopped before its turn came"
        on_end(member)
