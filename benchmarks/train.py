"""How fast a training is, and what clew itself costs in it.

Contestants take turns in one process on one core, each in a thread of its own that sleeps while another works: a
block of 20 steps of one, then of the next, in an order shuffled every round. Compared are 25th percentiles of block
times, because run against run scatters by 10% on a shared machine; the bare loop against itself shows what is left.
The GraphNet's steps are a hundred times as long, so that a block of 20 would never be undisturbed, and its batches
differ in size: its blocks have two steps, on the same batches for all in a round, and medians over rounds are compared.
clew is `clew.train` as users call it, with its records, validations and checkpoints; lightning runs at its fastest
(`barebones`). All have the same model, first weights, batch size and fused optimiser.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import importlib.util
import itertools
import json
import logging
import multiprocessing
import os
import statistics
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import FileStore
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Adam

import clew
from clew import Batch, Dataset, Recipe, Run, Section, Table
from clew.dataset.batch import to_batch
from clew.dataset.sampler import Sampler
from clew.ledger.environment import capture
from clew.recipe import find
from clew.recipes.tracking.recipe import Tracking
from clew.table import Ragged
from clew.train import checkpoint
from clew.train.config import TrainConfig
from clew.train.engine import Engine, as_loss
from clew.train.loop import _Loop
from clew.train.strategies import Strategy
from clew.train.strategies.allreduce import AllReduce
from clew.train.supply import make_loader

WARM = 1
"""Rounds that are not counted."""
WIDE_STEPS = 4
"""Of a block of the MLP with 2 million parameters."""
CPU = torch.device("cpu")
Turn = Callable[[], None]
Times = dict[str, list[float]]


class Over(Exception):  # noqa: N818
    """Ends a contestant whose blocks are all done."""


class Turning:
    """In a recipe: says `turn` at the begin of every training step."""

    turn: Turn = staticmethod(lambda: None)

    def step(self, model: nn.Module, batch: Batch) -> Any:
        self.turn()
        return super().step(model, batch)  # type: ignore[misc]


class Widths(Section):
    hidden: tuple[int, ...] = (64, 64)


class Flat(Turning, Recipe):
    """20 numbers to yes or no."""

    Config = Widths
    columns = ("x", "y")
    features: ClassVar[int] = 20

    def prepare(self, events: Table) -> Table:
        return events

    def model(self) -> nn.Module:
        widths = (self.features, *self.config.hidden)
        layers = [each for i, o in itertools.pairwise(widths) for each in (nn.Linear(i, o), nn.ReLU())]
        return nn.Sequential(*layers, nn.Linear(widths[-1], 1), nn.Flatten(0))

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        return model(batch["x"])

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return binary_cross_entropy_with_logits(outputs, batch["y"], reduction="none")


class Graphs(Turning, Tracking):
    """The shipped recipe, in turns."""


class Task(Protocol):
    """The same training for everybody."""

    name: str
    dataset: Dataset
    size: int
    steps: int
    """Of a block."""

    @property
    def alike(self) -> bool:
        """Whether one block is as much work as another."""

    @property
    def recipe(self) -> Flat | Graphs:
        """Whose model and loss everybody has."""

    def bare(self, turn: Turn) -> None:
        """The loop a user would write, and nothing else."""

    def batches(self) -> Iterator[Any]:
        """An epoch for others' loops, loaded as the bare one does."""

    def loss(self, model: nn.Module, item: Any) -> Tensor:
        """The mean over such a batch."""


@dataclass
class FlatTask:
    dataset: Dataset
    recipe: Flat = field(default_factory=Flat)
    size: int = 128
    steps: int = 20
    name: str = "MLP"
    alike: ClassVar[bool] = True

    def __post_init__(self) -> None:
        table = self.dataset.read("train")
        self.x, self.y = torch.from_numpy(table.fixed("x")).clone(), torch.from_numpy(table.fixed("y")).clone()

    def bare(self, turn: Turn) -> None:
        model, optimizer = fresh(self.recipe)
        while True:
            for index in torch.split(torch.randperm(len(self.x)), self.size):
                turn()
                loss = binary_cross_entropy_with_logits(model(self.x[index]), self.y[index])
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)

    def batches(self) -> Iterator[Any]:
        for index in torch.split(torch.randperm(len(self.x)), self.size):
            yield self.x[index], self.y[index]

    def loss(self, model: nn.Module, item: Any) -> Tensor:
        return binary_cross_entropy_with_logits(model(item[0]), item[1])


@dataclass
class GraphTask:
    dataset: Dataset
    recipe: Graphs = field(default_factory=Graphs)
    size: int = 32
    steps: int = 2
    name: str = "GraphNet"
    alike: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self.table = self.dataset.read("train", columns=list(Tracking.columns or ()))
        self.epochs = 0
        self.sampler = Sampler(len(self.table), self.size)
        """The order of clew's own sampler: events differ in size, and so everybody has the same in the same round."""

    def bare(self, turn: Turn) -> None:
        model, optimizer = fresh(self.recipe)
        for epoch in range(1 << 30):
            for numbers in self.sampler.batches(epoch):
                turn()
                batch = to_batch(self.table.take(numbers), self.recipe.columns)
                total, weight = self.recipe.loss(model(batch), batch)
                (total / weight).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)

    def batches(self) -> Iterator[Any]:
        self.epochs += 1
        for numbers in self.sampler.batches(self.epochs - 1):
            yield to_batch(self.table.take(numbers), self.recipe.columns)

    def loss(self, model: nn.Module, item: Any) -> Tensor:
        total, weight = self.recipe.loss(model(item), item)
        return total / weight


def fresh(recipe: Recipe) -> tuple[nn.Module, Adam]:
    """The weights that clew begins with for seed 0, and the optimiser everybody has."""
    torch.manual_seed(0)
    model = recipe.model()
    return model, Adam(model.parameters(), lr=1e-3, fused=True)


def with_clew(task: Task, folder: Path, turn: Turn, **settings: Any) -> None:
    """`clew.train` in this process, until `turn` raises."""
    task.recipe.turn = turn
    given = {"batch_size": task.size, "epochs": 100_000, "threads": 1, "optimizer": {"lr": 1e-3}, **settings}
    clew.train(task.recipe, task.dataset, output=folder, **given)


def with_lightning(task: Task, turn: Turn) -> None:
    """lightning's Trainer without anything that can be left out, until `turn` raises."""
    import lightning

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.optimizer = fresh(task.recipe)

        def training_step(self, item: Any, number: int) -> Tensor:
            turn()
            return task.loss(self.model, item)

        def configure_optimizers(self) -> Adam:
            return self.optimizer

        def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
            return batch  # it is there

    class Epochs:
        def __iter__(self) -> Iterator[Any]:
            return task.batches()

        def __len__(self) -> int:  # without it, lightning fetches one batch more to see whether there is one
            return -(-task.dataset.splits["train"] // task.size)

    trainer = lightning.Trainer(accelerator="cpu", devices=1, max_epochs=-1, barebones=True)
    trainer.fit(Module(), Epochs())


class Contestant:
    """A loop in a thread that works only when it is its turn."""

    def __init__(self, loop: Callable[[Turn], None], steps: int) -> None:
        self._loop, self._steps, self._lead = loop, steps, steps // 10
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._count, self._begun, self._seconds, self._over = 0, 0.0, 0.0, False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._wait()  # until it stands before its first step

    def turn(self) -> None:
        """Called by the loop at the begin of every step. The clock starts after a few steps, with warm caches: in a
        training of its own, a loop does not begin anew every 20 steps."""
        place = self._count % (self._lead + self._steps)
        if place == 0:
            self._seconds = time.perf_counter() - self._begun
            self._back.release()
            self._go.acquire()
            if self._over:
                raise Over
        if place == self._lead:
            self._begun = time.perf_counter()
        self._count += 1

    def block(self) -> float:
        """Let it do one block; the seconds it took."""
        self._go.release()
        self._wait()
        return self._seconds

    def end(self) -> None:
        self._over = True
        self._go.release()
        self._thread.join()

    def _wait(self) -> None:
        self._back.acquire()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        torch.set_num_threads(1)
        try:
            self._loop(self.turn)
        except Over:
            pass
        except BaseException as error:
            self._error = error
        self._back.release()


def alternate(blocks: Mapping[str, Callable[[], float]], rounds: int) -> Times:
    """Seconds of every block of every contestant, who go in another order every round."""
    times: Times = {name: [] for name in blocks}
    rng = np.random.default_rng(1)
    for _ in range(rounds + WARM):
        for name in rng.permutation(list(blocks)).tolist():
            times[name].append(blocks[name]())
    return {name: each[WARM:] for name, each in times.items()}


def contest(task: Task, folder: Path, rounds: int) -> Times:
    """The bare loop, itself again, clew and (where it is installed) lightning."""
    loops: dict[str, Callable[[Turn], None]] = {"bare loop": task.bare, "bare loop again": task.bare}
    loops["clew"] = partial(with_clew, task, folder)
    if importlib.util.find_spec("lightning"):
        loops["lightning"] = partial(with_lightning, task)
    contestants = {name: Contestant(loop, task.steps) for name, loop in loops.items()}
    try:
        return alternate({name: each.block for name, each in contestants.items()}, rounds)
    finally:
        for each in contestants.values():
            each.end()


def quartile(times: Sequence[float]) -> float:
    return float(np.percentile(times, 25))


class Sheet:
    """What was found, printed as it comes."""

    def __init__(self) -> None:
        self.bars: list[dict[str, Any]] = []
        self.stated: dict[str, float] = {}

    def bar(self, name: str, value: float, limit: float, unit: str, *, lower: bool = False) -> None:
        ok = value <= limit if lower else value >= limit
        self.bars.append({"name": name, "value": value, "bar": limit, "unit": unit, "ok": bool(ok)})
        sign, word = "<=" if lower else ">=", "ok" if ok else "MISSED"
        print(f"{name:58} {value:12,.3f} {unit:16} {sign} {limit:<6g} {word}", flush=True)

    def state(self, name: str, value: float, unit: str) -> None:
        self.stated[f"{name} [{unit}]"] = value
        print(f"  {name:56} {value:12,.3f} {unit}", flush=True)


def ratio(task: Task, times: Times, who: str, other: str) -> float:
    """How many times as fast `other` is as `who`."""
    if task.alike:
        return quartile(times[who]) / quartile(times[other])
    return float(np.median(np.divide(times[who], times[other])))


def against(sheet: Sheet, title: str, task: Task, times: Times, rival: str) -> None:
    """clew's speed over that of a rival who also ran against himself."""
    for who, blocks in times.items():
        sheet.state(f"{title}: {who}", task.steps * task.size / quartile(blocks), "samples/s")
    again = f"{rival} again"
    sheet.state(f"{title}: control, {rival} against itself", ratio(task, times, rival, again), "times")
    found = (ratio(task, times, rival, "clew") + ratio(task, times, again, "clew")) / 2
    sheet.bar(f"{title}: clew against {rival}", found, 0.97, "times")


def single(sheet: Sheet, task: Task, folder: Path, rounds: int) -> None:
    """One process: clew against the bare loop and lightning."""
    times = contest(task, folder, rounds)
    against(sheet, task.name, task, times, "bare loop")
    own = quartile(times["clew"]) - quartile([*times["bare loop"], *times["bare loop again"]])
    if isinstance(task, FlatTask):
        sheet.bar("MLP: clew's own, a step", own / task.steps * 1e6, 20, "microseconds", lower=True)
    if "lightning" in times:
        # a step of the GraphNet takes 45 ms here and lightning's own part of it 1 ms: nobody can be 1.5 times as fast
        wanted = 1.5 if isinstance(task, FlatTask) else 0.97
        sheet.bar(f"{task.name}: clew against lightning", ratio(task, times, "lightning", "clew"), wanted, "times")


def steps_of_clew(recipe: Recipe, strategy: AllReduce, batches: Sequence[Batch]) -> Callable[[], None]:
    """Everything the loop does in a step but loading and recording."""
    model = strategy.place(fresh(recipe)[0])
    engine = Engine(recipe, model, TrainConfig(workers=2), strategy, CPU)

    def block() -> None:
        for batch in batches:
            strategy.order, strategy.alarm = 0, False
            engine.step([batch])
            strategy.heard()

    return block


def steps_of_torch(recipe: Recipe, batches: Sequence[Batch]) -> Callable[[], None]:
    """The same with DistributedDataParallel."""
    plain, optimizer = fresh(recipe)
    model = DistributedDataParallel(plain)

    def block() -> None:
        for batch in batches:
            total, weight = as_loss(recipe.loss(recipe.forward(model, batch), batch), batch)
            (total / weight).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return block


def in_step(work: Callable[[], None]) -> float:
    """Seconds of a block that all ranks begin together."""
    dist.barrier()
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def rank_work(task: Task, folder: Path, rounds: int, rank: int) -> None:
    """One rank of two: clew's step and DDP's in turns, in one process group."""
    torch.set_num_threads(1)
    recipe = task.recipe
    strategy = AllReduce(rank=rank, ranks=2, store=FileStore(str(folder / "meet"), 2), device=CPU)
    shares = Sampler(task.dataset.splits["train"], task.size, 0, rank, 2).epoch(0)
    table = task.dataset.read("train", columns=list(recipe.columns or ()))
    chosen = itertools.islice(shares, task.steps)
    batches = [to_batch(table.take(numbers), recipe.columns) for numbers in chosen]
    works = {
        "DDP": steps_of_torch(recipe, batches),
        "DDP again": steps_of_torch(recipe, batches),
        "clew": steps_of_clew(recipe, strategy, batches),
    }
    times = alternate({name: partial(in_step, work) for name, work in works.items()}, rounds)
    if rank == 0:
        (folder / "times.json").write_text(json.dumps(times))
    strategy.close()


def enter_rank(kind: type[FlatTask | GraphTask], parts: tuple[Any, ...], *place: Any) -> None:
    """A rank's process; the task is put together anew, as its recipe does not travel."""
    recipe, config, path, *sizes = parts
    rank_work(kind(Dataset(path), recipe(config), *sizes), *place)


def two_ranks(sheet: Sheet, title: str, task: FlatTask | GraphTask, folder: Path, rounds: int) -> None:
    """All-reduce against DDP, over the loopback."""
    folder.mkdir()
    context = multiprocessing.get_context("spawn")
    parts = (type(task.recipe), task.recipe.config, task.dataset.path, task.size, task.steps)
    ranks = [
        context.Process(target=enter_rank, args=(type(task), parts, folder, rounds, rank), daemon=True)
        for rank in range(2)
    ]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join()
    against(sheet, f"{title}, 2 ranks", task, json.loads((folder / "times.json").read_text()), "DDP")


class Reader(nn.Module):
    """A GRU's last state to a number."""

    def __init__(self) -> None:
        super().__init__()
        self.memory, self.out = nn.GRU(8, 32, batch_first=True), nn.Linear(32, 1)

    def forward(self, sequences: Tensor, lengths: Tensor) -> Tensor:
        states, _ = self.memory(sequences)
        last: Tensor = self.out(states[torch.arange(len(lengths)), lengths - 1])
        return last.squeeze(1)


def reading(table: Table) -> Callable[[Any], float]:
    """A function that learns from some sequences, padded, and says how long that took."""
    torch.manual_seed(0)
    model = Reader()
    optimizer = Adam(model.parameters(), fused=True)

    def learn(numbers: Any) -> float:
        begun = time.perf_counter()
        batch = to_batch(table.take(numbers))
        sequences = batch.ragged("x")
        loss = binary_cross_entropy_with_logits(model(sequences.padded()[0], sequences.lengths), batch["y"])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return time.perf_counter() - begun

    return learn


def bucketing(sheet: Sheet, share: float) -> None:
    """Padding, and what it costs: an epoch (or a share of it) each way, batch by batch in turns."""
    rng = np.random.default_rng(1)
    lengths = np.maximum(rng.lognormal(np.log(40) - 0.8**2 / 2, 0.8, 20_000).round().astype(np.int64), 1)
    values = rng.normal(size=(int(lengths.sum()), 8)).astype(np.float32)
    offsets = np.concatenate([[0], lengths.cumsum()])
    table = Table({"x": Ragged(values, offsets), "y": rng.integers(0, 2, len(lengths)).astype(np.float32)})
    orders = {
        "bucketed": Sampler(len(lengths), 128, lengths=lengths).batches(0),
        "random": Sampler(len(lengths), 128).batches(0),
    }
    padded = {name: sum(lengths[b].max() * len(b) for b in each) / lengths.sum() for name, each in orders.items()}
    sheet.state("padded over real items, random batches", padded["random"], "times")
    sheet.bar("padded over real items, bucketed batches", padded["bucketed"], 1.2, "times", lower=True)
    learners = {name: reading(table) for name in orders}
    for name, each in orders.items():
        learners[name](each[0])
    seconds, done = dict.fromkeys(orders, 0.0), dict.fromkeys(orders, 0)
    for place in range(round(share * len(orders["random"]))):
        for name, each in orders.items():
            seconds[name] += learners[name](each[place])
            done[name] += len(each[place])
    speed = {name: done[name] / seconds[name] for name in orders}
    for name, found in speed.items():
        sheet.state(f"GRU, {name} batches", found, "samples/s")
    sheet.bar("GRU: bucketed against random batches", speed["bucketed"] / speed["random"], 2, "times")


@contextlib.contextmanager
def timed(owner: Any, name: str) -> Iterator[list[tuple[float, float]]]:
    """Begin and end of every call of something within the block."""
    whole, spans = getattr(owner, name), list[tuple[float, float]]()

    def call(*arguments: Any, **options: Any) -> Any:
        begun = time.perf_counter()
        try:
            return whole(*arguments, **options)
        finally:
            spans.append((begun, time.perf_counter()))

    setattr(owner, name, call)
    try:
        yield spans
    finally:
        setattr(owner, name, whole)


def checkpoints(sheet: Sheet, data: Dataset, folder: Path, count: int) -> None:
    """What a checkpoint a minute costs: the loop is held up, and its steps are slower while the thread writes."""
    task = FlatTask(data, Flat(Widths(hidden=(2230, 2230, 2230))), 32)
    starts: list[float] = []
    with timed(_Loop, "_save") as saves, timed(checkpoint, "save_state") as writes:

        def turn() -> None:
            starts.append(time.perf_counter())
            if len(writes) == count and starts[-1] > writes[-1][1] + 0.5:
                raise Over

        with contextlib.suppress(Over):
            with_clew(task, folder, turn, checkpoint_minutes=3 / 60, log_every=10)
    held = statistics.median(end - begin for begin, end in saves[:count])
    size = max(path.stat().st_size for path in Run.open(folder).states())
    parameters = sum(each.numel() for each in task.recipe.model().parameters())
    sheet.state("checkpoint: parameters", parameters / 1e6, "million")
    sheet.state("checkpoint: state on disk", size / 1e6, "MB")
    sheet.state("checkpoint: written in the background in", statistics.median(b - a for a, b in writes), "s")
    slower = slowed(starts, saves, writes)
    sheet.state("checkpoint: the loop is held up for", held, "s")
    sheet.state("checkpoint: steps while it is written are slower by", slower, "s")
    sheet.bar("checkpoint: held up, at one a minute", 100 * held / 60, 2, "% of wall time", lower=True)
    sheet.bar("checkpoint: held up and slower", 100 * (held + slower) / 60, 2, "% of wall time", lower=True)


def slowed(
    starts: Sequence[float], saves: Sequence[tuple[float, float]], writes: Sequence[tuple[float, float]]
) -> float:
    """Seconds that the steps during one write take beyond those of quiet times."""

    def meet(begin: float, end: float, spans: Sequence[tuple[float, float]]) -> bool:
        return any(begin < b and a < end for a, b in spans)

    steps = [(a, b) for a, b in itertools.pairwise(starts) if not meet(a, b, saves)]
    during = [b - a for a, b in steps if meet(a, b, writes)]
    quiet = [b - a for a, b in steps if not meet(a, b, writes)]
    return (sum(during) - len(during) * statistics.median(quiet)) / len(writes)


def loading(sheet: Sheet, data: Dataset, folder: Path, epochs: int) -> None:
    """How long a training waits for data, by where the data is kept; from its own records."""
    for keep in ("memory", "compressed", "disk"):
        settings: dict[str, Any] = {"loading": {"keep": keep}, "epochs": epochs, "threads": 1, "batch_size": 32}
        run = clew.train("tracking", data, output=folder / keep, **settings)
        records = [each for each in run.records() if each["kind"] == "step"]
        wait, seconds = (sum(each[name] for each in records) for name in ("wait", "seconds"))
        sheet.bar(f"loading, {keep}: waiting for data", 100 * wait / seconds, 2, "% of training", lower=True)
    config = TrainConfig.model_validate({"loading": {"keep": "compressed"}, "batch_size": 32})
    loader = make_loader(find("tracking")(), config, data, Strategy(), CPU)
    for _ in loader.epoch(0):
        pass
    facts = loader.store.facts
    sheet.state("loading, compressed: ratio", facts["raw_bytes"] / facts["bytes"], "times")
    sheet.state("loading, compressed: read", facts["read_bytes"] / facts["read_seconds"] / 1e9, "GB/s")


def flat_data(folder: Path) -> Dataset:
    """Enough for a thousand batches of 128."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(130_600, Flat.features)).astype(np.float32)
    y = (x @ rng.normal(size=Flat.features) + rng.normal(size=len(x)) > 0).astype(np.float32)
    Table({"x": x, "y": y}).save(folder / "events.h5")
    return prepared(Flat(), folder / "events.h5", folder / "flat")


def graph_data(folder: Path, events: int) -> Dataset:
    recipe = find("tracking")()
    for _ in recipe.generate(events, 1, folder / "events"):
        pass
    return prepared(recipe, folder / "events", folder / "graphs")


def prepared(recipe: Recipe, source: Path, output: Path) -> Dataset:
    given: dict[str, Any] = {
        "input": [str(source)],
        "cache": str(output.parent / "cache"),
        "split": {"train": 0.98, "val": 0.02},
    }
    return clew.prepare(recipe, output=str(output), workers=1, **given)


def measure(sheet: Sheet, folder: Path, *, quick: bool) -> dict[str, int]:
    """All of it; how many blocks of each contestant were counted."""
    flat, graphs = flat_data(folder), graph_data(folder, 4096 if quick else 12_288)
    wide = FlatTask(flat, Flat(Widths(hidden=(1000, 1000, 1000))), steps=WIDE_STEPS)
    rounds = {"MLP": 100, "GraphNet": 30, "2 ranks": 20} if quick else {"MLP": 500, "GraphNet": 120, "2 ranks": 80}
    single(sheet, FlatTask(flat), folder / "mlp", rounds["MLP"])
    single(sheet, GraphTask(graphs), folder / "graphnet", rounds["GraphNet"])
    two_ranks(sheet, "MLP of 2 million", wide, folder / "wide", rounds["2 ranks"])
    two_ranks(sheet, "GraphNet", GraphTask(graphs), folder / "pair", rounds["2 ranks"])
    bucketing(sheet, 0.2 if quick else 1.0)
    checkpoints(sheet, flat, folder / "large", 2 if quick else 5)
    loading(sheet, graphs, folder / "loading", 1)
    return rounds


def conditions(sheet: Sheet, rounds: dict[str, int], seconds: float, *, quick: bool) -> dict[str, Any]:
    lightning = importlib.metadata.version("lightning") if importlib.util.find_spec("lightning") else None
    return {
        "quick": quick,
        "threads": 1,
        "steps_a_block": {"MLP": FlatTask.steps, "GraphNet": GraphTask.steps, "MLP of 2 million": WIDE_STEPS},
        "blocks": rounds,
        "lightning": lightning,
        "seconds": round(seconds),
        "load_average": os.getloadavg(),
        "environment": capture(),
        "stated": sheet.stated,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer events and repetitions")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")
    warnings.filterwarnings("ignore", module="lightning")
    sheet, begun = Sheet(), time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        rounds = measure(sheet, Path(temporary), quick=arguments.quick)
    if arguments.json:
        facts = conditions(sheet, rounds, time.monotonic() - begun, quick=arguments.quick)
        arguments.json.write_text(json.dumps({"bars": sheet.bars, "conditions": facts}, indent=1) + "\n")
    return int(not all(each["ok"] for each in sheet.bars))


if __name__ == "__main__":
    sys.exit(main())
