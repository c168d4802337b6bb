"""Where each process of an asynchronous training starts: as coordinator, as another master, or as worker."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from clew.data.dataset import Dataset
from clew.errors import LostPeerError
from clew.jobs.rank_info import RankInfo
from clew.recipe import Recipe
from clew.recipe_errors import recipe_error
from clew.runs import RecordWriter, Run
from clew.training import batch_size_search
from clew.training.asynchronous.connection import connect_rank
from clew.training.asynchronous.coordinator import Coordinator
from clew.training.asynchronous.coordinator_records import CoordinatorRecords
from clew.training.asynchronous.flat_model import FlatModel
from clew.training.asynchronous.group_master import GroupMaster
from clew.training.asynchronous.layout import COORDINATOR, ClusterLayout, Roles, WeightSlice, split_weights
from clew.training.asynchronous.messaging import MessageTransport
from clew.training.asynchronous.messaging.direct import DirectTransport
from clew.training.asynchronous.messaging.frames import message_limit
from clew.training.asynchronous.shard_master import ShardMaster
from clew.training.asynchronous.update_kind import with_update_kind
from clew.training.asynchronous.worker import Worker, introduce
from clew.training.config import TrainConfig
from clew.training.device import find_device, select_device
from clew.training.rank_session import open_session, system_monitor
from clew.training.stop_signal import StopSignal
from clew.training.training_data import make_sampler
from clew.training.training_start import TrainingStart
from clew.training.validation import build_model


@dataclass(frozen=True)
class AsynchronousTraining:
    """What a process needs to take part in an asynchronous training."""

    run: Run
    recipe: Recipe
    config: TrainConfig
    writer: RecordWriter
    stop: StopSignal
    resume: bool
    """Whether to continue from the newest checkpoint."""


def run_rank(run: Run, start: TrainingStart, rank_info: RankInfo, store: Any = None) -> None:
    """Take part in an asynchronous training as one of its processes.

    Args:
        run: The folder of the run.
        start: The recipe, the settings, and whether to continue from the newest checkpoint. The coordinator renews
            the lease.
        rank_info: The rank of this process.
        store: Where the ranks exchange their addresses; None for a single process.

    Raises:
        Exception: Whatever ended the training early; it is recorded before.
    """
    recipe = start.recipe
    with open_session(run, start.config, rank_info, start.lease) as rank:
        config = _with_batch_size(run, recipe, start.config, rank_info, store, rank.writer)
        config = with_update_kind(recipe, config)
        training = AsynchronousTraining(run, recipe, config, rank.writer, rank.stop, start.resume)
        with system_monitor(run, config, rank_info, find_device(rank_info.local_rank, config.device)):
            rank.end_reason = _play_role(training, rank_info, store)


def _with_batch_size(
    run: Run, recipe: Recipe, config: TrainConfig, rank_info: RankInfo, store: Any, writer: RecordWriter
) -> TrainConfig:
    """Return the settings with a batch size; if none is set, the coordinator searches one and shares it."""
    if isinstance(config.batch_size, int):
        return config
    if rank_info.rank == COORDINATOR:
        dataset = Dataset(config.dataset)
        search = batch_size_search.find_batch_size(
            recipe, config, dataset, select_device(rank_info.local_rank, config.device)
        )
        writer.write("batch_size", **search)
        run.save_settings(batch_size=search["chosen"])
        if store is not None:
            store.set("batch_size", str(search["chosen"]))
        size = int(search["chosen"])
    else:
        size = int(store.get("batch_size"))
    return config.model_copy(update={"batch_size": size})


def _play_role(training: AsynchronousTraining, rank_info: RankInfo, store: Any) -> str:
    """Do this rank's part; return why the training ended before its last epoch, or ''."""
    config, recipe = training.config, training.recipe
    if config.asynchronous.listen:
        from clew.training.asynchronous.elastic_workers import listen

        return listen(training)
    roles = Roles(config, rank_info.ranks)
    if config.asynchronous.masters == 0:
        return _run_in_one_process(training)
    largest = message_limit(FlatModel(build_model(recipe)).length)
    connection = connect_rank(config, rank_info, roles, store, training.run.token_file, largest)
    with contextlib.closing(connection) as transport:
        if rank_info.rank == COORDINATOR:
            coordinator = make_coordinator(training, transport, roles)
            with contextlib.closing(coordinator):
                coordinator.serve()
            return coordinator.records.end_reason
        training.stop.can_save = True  # the coordinator decides when this process ends
        torch.manual_seed(config.seed)
        flat_model = FlatModel(build_model(recipe))
        if rank_info.rank in roles.workers:
            introduce(transport)
            slices = roles.slices_for(rank_info.rank, flat_model.length)
            run_worker(
                training.run, recipe, config, transport, slices, select_device(rank_info.local_rank, config.device)
            )
        elif rank_info.rank in roles.group_masters:
            size = roles.group_size(rank_info.rank)
            GroupMaster(transport, config, flat_model.parameter_count, workers=size).serve()
        else:
            ShardMaster(transport, config, flat_model.parameter_count).serve()
    return ""


def make_coordinator(
    training: AsynchronousTraining,
    transport: MessageTransport,
    roles: Roles,
    *,
    document: Mapping[str, Any] | None = None,
) -> Coordinator:
    """Make the coordinator, ready to serve.

    Args:
        training: The training.
        transport: Reaches workers and masters.
        roles: Which rank has which role.
        document: The settings that are sent to workers which join by themselves.
    """
    config = training.config
    torch.manual_seed(config.seed)
    dataset = Dataset(config.dataset)
    model = build_model(training.recipe, config.start_from, dataset=None if training.resume else dataset)
    flat_model = FlatModel(model)
    sampler = make_sampler(config, dataset)
    records = CoordinatorRecords(training.run, training.recipe, config, training.writer, model, sampler)
    records.rehearse(torch.device("cpu"))
    slices = split_weights(flat_model.length, roles.masters)
    started_workers = 0 if config.asynchronous.listen else len(roles.workers)
    layout = ClusterLayout(slices[0], started_workers, slices[1:], roles.group_masters)
    coordinator = Coordinator(transport, records, flat_model, layout, training.stop, document)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    records.write_plan(sampler.samples, parameters, str(find_device(0, config.device)))
    if training.resume:
        coordinator.restore()
    coordinator.begin()
    return coordinator


def run_worker(
    run: Run | None,
    recipe: Recipe,
    config: TrainConfig,
    transport: MessageTransport,
    slices: list[WeightSlice],
    device: torch.device,
) -> int:
    """Work until there are no more batches; return how many were trained on.

    A failure is reported to the coordinator before it is raised.
    """
    for part in slices:
        if part.master != COORDINATOR:
            transport.send(part.master, "hello")
    try:
        with contextlib.closing(Worker(transport, recipe, config, slices, device, run=run)) as worker:
            return worker.run()
    except LostPeerError:
        raise
    except Exception as error:
        failure = recipe_error(error)
        with contextlib.suppress(Exception):
            reason = str(failure) or type(failure).__name__
            transport.send(COORDINATOR, "failed", {"reason": reason, "kind": type(failure).__name__})
        raise failure from error


def _run_in_one_process(training: AsynchronousTraining) -> str:
    """Run master and worker in one process: the same steps, but nothing is sent."""
    config = training.config
    roles = Roles(config, 1)
    master_side, worker_side = DirectTransport(0), DirectTransport(1)
    coordinator = make_coordinator(training, master_side, roles)
    master_side.deliver, worker_side.deliver = worker_side.inbox.append, coordinator.handle
    worker_side.idle = coordinator.tick
    slices = roles.slices_for(0, coordinator.flat_model.length)
    training.stop.can_save = True
    with contextlib.closing(coordinator):
        introduce(worker_side)
        run_worker(training.run, training.recipe, config, worker_side, slices, select_device(0, config.device))
        while not coordinator.finished:
            coordinator.tick()
        coordinator.serve()
    return coordinator.records.end_reason
