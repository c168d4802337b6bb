"""Making batches: the cost of padding, and how long trainings wait for data."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _contest import Sheet
from _tasks import Flat, Widths, flat_events, generated
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.optim import Adam

import clew
from clew import Dataset, Table
from clew.data.dataset.batch import to_batch
from clew.data.dataset.sampler import Sampler
from clew.data.table import Ragged
from clew.recipe import find
from clew.training.config import TrainConfig
from clew.training.strategies import Strategy
from clew.training.training_data import make_loader

CPU = torch.device("cpu")


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
    """Return a function that trains on a batch of padded sequences and returns its time in seconds."""
    torch.manual_seed(0)
    model = Reader()
    optimizer = Adam(model.parameters(), fused=True)

    def learn(numbers: Any) -> float:
        start = time.perf_counter()
        batch = to_batch(table.take(numbers))
        sequences = batch.ragged("x")
        loss = binary_cross_entropy_with_logits(model(sequences.padded()[0], sequences.lengths), batch["y"])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return time.perf_counter() - start

    return learn


def bucketing(sheet: Sheet, share: float) -> None:
    """Padding and its cost: an epoch (or a part of it) with and without, alternating batch by batch."""
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
    for name, samples_per_second in speed.items():
        sheet.state(f"GRU, {name} batches", samples_per_second, "samples/s")
    sheet.bar("GRU: bucketed against random batches", speed["bucketed"] / speed["random"], 2, "times")


def waiting(sheet: Sheet, graphs: Dataset, folder: Path, events: int) -> None:
    """How long a training of every shipped recipe waits for data, at its default batch size; from its records."""
    for keep in ("memory", "compressed", "disk"):
        waited(sheet, f"tracking, {keep}", "tracking", graphs, folder / keep, epochs=1, loading={"keep": keep})
    for name in ("hitgraph", "tracknet"):
        data = generated(name, folder / name, events)
        waited(sheet, name, name, data, folder / name / "run", epochs=3)
    waited(
        sheet, "columns, MLP 20-256-256-256-1", mlp(256, 256, 256), flat_events(), folder / "large" / "run", epochs=3
    )
    waited(sheet, "columns, MLP 20-64-64-1", mlp(64, 64), flat_events(), folder / "small" / "run", epochs=3, bar=False)


def mlp(*widths: int) -> nn.Module:
    return Flat(Widths(hidden=widths)).model()


def waited(sheet: Sheet, title: str, recipe: Any, data: Any, output: Path, *, bar: bool = True, **settings: Any) -> Any:
    """Its share of a training, which is returned. No bar for a step so short that a bare loop's `x[index]` is more than
    2% of it."""
    run = clew.train(recipe, data, output=output, threads=1, **settings)
    records = list(run.records(kind="step"))
    wait, seconds = (sum(each[name] for each in records) for name in ("wait", "seconds"))
    sheet.state(f"{title}: making a batch or waiting for it", 1e6 * wait / records[-1]["step"], "microseconds a step")
    if bar:
        sheet.bar(f"{title}: waiting for data", 100 * wait / seconds, 2, "% of training", lower=True)
    else:
        sheet.state(f"{title}: waiting for data", 100 * wait / seconds, "% of training")
    return run


def rate(run: Any, *, skip: int = 1) -> float:
    """Return the samples per second of a training, without validations and without its first `skip` epochs."""
    records = list(run.records(kind="step"))
    before = max((each["samples"] for each in records if each["epoch"] < skip), default=0)
    timed = [each for each in records if each["epoch"] >= skip]
    samples_per_second: float = (timed[-1]["samples"] - before) / sum(each["seconds"] for each in timed)
    return samples_per_second


def compression(sheet: Sheet, data: Dataset) -> None:
    """The compression of tracking graphs by blosc2, and the speed of decompression."""
    config = TrainConfig.model_validate({"loading": {"keep": "compressed"}, "batch_size": 32})
    loader = make_loader(find("tracking")(), config, data, Strategy(), CPU)
    for _ in loader.epoch(0):
        pass
    facts = loader.store.facts
    sheet.state("loading, compressed: ratio", facts["raw_bytes"] / facts["bytes"], "times")
    sheet.state("loading, compressed: read", facts["read_bytes"] / facts["read_seconds"] / 1e9, "GB/s")
