"""Which process is what: the coordinator, another master, the head of a group, or a worker."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from clew.data.dataset import Dataset
from clew.errors import ConfigError, LostPeerError
from clew.jobs.lease import Lease
from clew.jobs.rank_info import RankInfo
from clew.recipe import Recipe
from clew.runs import RecordWriter, Run
from clew.training import batch_size_search
from clew.training.asynchronous.coordinator import Coordinator
from clew.training.asynchronous.coordinator_records import Book
from clew.training.asynchronous.flat_model import Vector
from clew.training.asynchronous.membership import Cluster, split
from clew.training.asynchronous.messaging import Facts, Message, Post
from clew.training.asynchronous.messaging.tcp import Client, Joint, Server, Token
from clew.training.asynchronous.other_masters import Head, Shard
from clew.training.asynchronous.worker import COORDINATOR, Part, Worker, introduce
from clew.training.config import TrainConfig
from clew.training.rank_session import RankSession, open_session, system_monitor
from clew.training.stop_signal import StopSignal
from clew.training.training_data import default_device, make_sampler, training_columns


class Roles:
    """Ranks: the coordinator, the other masters, the heads of groups, the workers."""

    def __init__(self, config: TrainConfig, ranks: int) -> None:
        central = config.central
        masters = max(1, central.masters)
        self.masters = list(range(masters))
        self.heads = list(range(masters, masters + central.groups))
        self.workers = list(range(masters + central.groups, ranks)) if central.masters else [0]

    def parts(self, rank: int, length: int) -> list[Part]:
        """Who holds the weights that a worker exchanges."""
        if not self.heads:
            return split(length, self.masters)
        return [Part(self.heads[self.workers.index(rank) % len(self.heads)], 0, length)]

    def group(self, head: int) -> int:
        """How many workers a head leads."""
        place = self.heads.index(head)
        return len(self.workers[place :: len(self.heads)])


def run_rank(
    run: Run,
    recipe: Recipe,
    config: TrainConfig,
    place: RankInfo,
    *,
    store: Any = None,
    resume: bool = False,
    lease: Lease | None = None,
) -> None:
    """Take part in an asynchronous training as one of its processes. The coordinator heeds `lease`.

    Raises whatever stops it, after writing the end down.
    """
    with open_session(run, config, place, lease) as rank:
        config = _sized(run, recipe, config, place, store, rank.writer)
        with system_monitor(run, config, place, default_device(place.local_rank)):
            rank.over = _play(run, recipe, config, place, store, rank, resume=resume)


def _sized(
    run: Run, recipe: Recipe, config: TrainConfig, place: RankInfo, store: Any, writer: RecordWriter
) -> TrainConfig:
    """The settings with a batch size in them; the coordinator finds one where none was given."""
    if isinstance(config.batch_size, int):
        return config
    if place.rank == 0:
        dataset = Dataset(config.dataset)
        columns = training_columns(recipe, dataset)
        found = batch_size_search.find_batch_size(recipe, config, dataset, columns, default_device(place.local_rank))
        writer.write("batch_size", **found)
        run.save_settings(batch_size=found["chosen"])
        if store is not None:
            store.set("batch_size", str(found["chosen"]))
        size = int(found["chosen"])
    else:
        size = int(store.get("batch_size"))
    return config.model_copy(update={"batch_size": size})


def _play(
    run: Run, recipe: Recipe, config: TrainConfig, place: RankInfo, store: Any, rank: RankSession, *, resume: bool
) -> str:
    """This rank's part; why the training ended before its last epoch, if it did."""
    writer, stop = rank.writer, rank.stop
    if config.central.listen:
        from clew.training.asynchronous.elastic_workers import listen

        return listen(run, recipe, config, writer, stop, resume=resume)
    roles = Roles(config, place.ranks)
    if config.central.masters == 0:
        return _alone(run, recipe, config, writer, stop, resume=resume)
    with contextlib.closing(_post(config, place, roles, store)) as post:
        if place.rank == COORDINATOR:
            coordinator = make_coordinator(run, recipe, config, writer, stop, post, roles, resume=resume)
            with contextlib.closing(coordinator):
                coordinator.serve()
            return coordinator.book.over
        torch.manual_seed(config.seed)
        if place.rank in roles.workers:
            introduce(post)
            work(run, recipe, config, post, roles.parts(place.rank, _length(recipe)), default_device(place.local_rank))
        elif place.rank in roles.heads:
            Head(post, config, Vector(recipe.model()).size, workers=roles.group(place.rank)).serve()
        else:
            Shard(post, config, Vector(recipe.model()).size).serve()
    return ""


def _length(recipe: Recipe) -> int:
    return Vector(recipe.model()).length


def make_coordinator(
    run: Run,
    recipe: Recipe,
    config: TrainConfig,
    writer: RecordWriter,
    stop: StopSignal,
    post: Post,
    roles: Roles,
    *,
    resume: bool,
    document: Mapping[str, Any] | None = None,
) -> Coordinator:
    """The coordinator with all it keeps, ready to serve."""
    cpu = torch.device("cpu")
    torch.manual_seed(config.seed)
    model = recipe.model()
    vector = Vector(model)
    sampler = make_sampler(config, Dataset(config.dataset))
    book = Book(run, recipe, config, writer, model, sampler)
    book.rehearse(cpu)
    parts = split(vector.length, roles.masters)
    cluster = Cluster(parts[0], 0 if config.central.listen else len(roles.workers), parts[1:], roles.heads)
    made = Coordinator(post, book, vector, config, stop, cluster, document)
    book.plan(sampler.samples, sum(parameter.numel() for parameter in model.parameters()), str(default_device(0)))
    if resume:
        made.restore()
    made.begin()
    return made


def work(
    run: Run | None,
    recipe: Recipe,
    config: TrainConfig,
    post: Post,
    parts: list[Part],
    device: torch.device,
) -> int:
    """Be a worker until there is no more work; how many batches that was.

    A failure is told to the coordinator before it is raised.
    """
    for part in parts:
        if part.peer != COORDINATOR:
            post.send(part.peer, "hello")
    with contextlib.closing(Worker(post, recipe, config, parts, device, run=run)) as worker:
        try:
            return worker.run()
        except LostPeerError:
            raise
        except Exception as error:
            with contextlib.suppress(Exception):
                post.send(COORDINATOR, "failed", {"why": str(error) or type(error).__name__})
            raise


def _post(config: TrainConfig, place: RankInfo, roles: Roles, store: Any) -> Post:
    """How this rank reaches the others."""
    if _over_mpi(config, place):
        from clew.training.asynchronous.messaging.mpi import Mpi

        return Mpi()
    alone = place.local_ranks == place.ranks
    host = "127.0.0.1" if alone else socket.gethostname()
    leaders = [*roles.masters, *roles.heads]
    server: Server | None = None
    if place.rank in leaders:
        token = Token.new(encrypted=not alone)
        server = Server(f"{host}:0", token=token, here=place.rank)
        store.set(f"master-{place.rank}", f"{server.address} {token}")
        if place.rank == COORDINATOR:
            return server
    client = Client(here=place.rank)
    wanted = [COORDINATOR] if server is not None else leaders
    for leader in wanted:
        address, word = store.get(f"master-{leader}").decode().split()
        client.connect(leader, address, Token.parse(word))
        if leader == COORDINATOR and server is None:
            client.watch(address, Token.parse(word))
    return client if server is None else Joint(server, client)


def _over_mpi(config: TrainConfig, place: RankInfo) -> bool:
    if config.central.comm == "tcp":
        return False
    if config.central.comm == "auto" and not _starts_mpi(place):
        return False
    try:
        from mpi4py import MPI
    except ImportError:
        if config.central.comm == "mpi":
            raise
        return False
    there = int(MPI.COMM_WORLD.size)
    if config.central.comm == "mpi" and there != place.ranks:
        told = "start them by mpiexec, or by srun with the PMI of the site (`mpi` in its profile)"
        raise ConfigError(f"train.central.comm is mpi, and MPI knows {there} of {place.ranks} ranks; {told}")
    return there == place.ranks


def _starts_mpi(place: RankInfo) -> bool:
    """Whether whoever started the ranks gave MPI something to meet by: without it, some libraries end the process."""
    if place.launcher == "srun":
        return any(name in os.environ for name in ("PMIX_RANK", "PMI_RANK", "PMI_FD"))
    return place.launcher.startswith("mpiexec")


def _alone(
    run: Run, recipe: Recipe, config: TrainConfig, writer: RecordWriter, stop: StopSignal, *, resume: bool
) -> str:
    """Master and worker in one process: the same steps, nothing sent."""
    roles = Roles(config, 1)
    above, below = Direct(0), Direct(1)
    coordinator = make_coordinator(run, recipe, config, writer, stop, above, roles, resume=resume)
    above.deliver, below.deliver = below.box.append, coordinator.handle
    below.idle = coordinator.tick
    parts = roles.parts(0, coordinator.vector.length)
    with contextlib.closing(coordinator):
        introduce(below)
        work(run, recipe, config, below, parts, default_device(0))
        while not coordinator.finished:
            coordinator.tick()
        coordinator.serve()
    return coordinator.book.over


class Direct(Post):
    """A post whose messages are handled by the receiver as they are sent."""

    def __init__(self, here: int) -> None:
        super().__init__()
        self.here = here
        self.box: deque[Message] = deque()
        self.deliver: Any = None
        self.idle: Any = None
        self._looked = time.monotonic()

    def _post(self, peer: int, kind: str, facts: Facts, tensor: Tensor | None, *, lent: bool) -> None:
        self.deliver(Message(self.here, kind, dict(facts), tensor))

    def receive(self, timeout: float | None = None) -> Message | None:
        """The answer, which is there already."""
        if self.idle is not None and time.monotonic() - self._looked > 0.1:
            self._looked = time.monotonic()
            self.idle()
        return self.box.popleft() if self.box else None

    def close(self) -> None:
        """Nothing to close."""
