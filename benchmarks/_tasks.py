"""The trainings that benchmarks compare: the same model, first weights, batches and optimiser for all."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from _contest import Sheet, Times, Turn, quartile
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.optim import Adam

import clew
from clew import Batch, Dataset, Recipe, Section, Table
from clew.data.dataset.batch import to_batch
from clew.data.dataset.sampler import Sampler
from clew.recipe import find
from clew.recipes.tracking.recipe import Tracking


class Turning:
    """For a recipe: calls `turn` at the start of every training step."""

    turn: Turn = staticmethod(lambda: None)

    def step(self, model: nn.Module, batch: Batch) -> Any:
        self.turn()
        return super().step(model, batch)  # type: ignore[misc]


class Widths(Section):
    hidden: tuple[int, ...] = (64, 64)


class Flat(Turning, Recipe):
    """Binary classification of 20 numbers."""

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
    """The same training for every contestant."""

    name: str
    dataset: Dataset
    size: int
    steps: int
    """Steps of a block."""

    @property
    def alike(self) -> bool:
        """Whether all blocks are the same amount of work."""

    @property
    def recipe(self) -> Flat | Graphs:
        """The recipe whose model and loss all contestants use."""

    def bare(self, turn: Turn) -> None:
        """The loop that a user would write, and nothing else."""

    def batches(self) -> Iterator[Any]:
        """The batches of an epoch for other loops, loaded as in the bare one."""

    def loss(self, model: nn.Module, item: Any) -> Tensor:
        """The mean loss of such a batch."""


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
        """The order of the sampler of clew: events differ in size, so all contestants get the same ones in a round."""

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
    """The first weights of clew for seed 0, and the optimiser of all contestants."""
    torch.manual_seed(0)
    model = recipe.model()
    return model, Adam(model.parameters(), lr=1e-3, fused=True)


def with_clew(task: Task, folder: Path, turn: Turn, **settings: Any) -> None:
    """`clew.train` in this process, until `turn` raises."""
    task.recipe.turn = turn
    options = {"batch_size": task.size, "epochs": 100_000, "threads": 1, "optimizer": {"lr": 1e-3}, **settings}
    clew.train(task.recipe, task.dataset, output=folder, **options)


def ratio(task: Task, times: Times, contestant: str, other: str) -> float:
    """The speed of `other` divided by that of `who`."""
    if task.alike:
        return quartile(times[contestant]) / quartile(times[other])
    return float(np.median(np.divide(times[contestant], times[other])))


def against(sheet: Sheet, title: str, task: Task, times: Times, rival: str) -> None:
    """The speed of clew divided by that of a rival, which also ran against itself."""
    for contestant, blocks in times.items():
        sheet.state(f"{title}: {contestant}", task.steps * task.size / quartile(blocks), "samples/s")
    again = f"{rival} again"
    sheet.state(f"{title}: control, {rival} against itself", ratio(task, times, rival, again), "times")
    speed = (ratio(task, times, rival, "clew") + ratio(task, times, again, "clew")) / 2
    sheet.bar(f"{title}: clew against {rival}", speed, 0.97, "times")


def flat_events() -> Table:
    """Enough for a thousand batches of 128."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(130_600, Flat.features)).astype(np.float32)
    y = (x @ rng.normal(size=Flat.features) + rng.normal(size=len(x)) > 0).astype(np.float32)
    return Table({"x": x, "y": y})


def flat_data(folder: Path) -> Dataset:
    flat_events().save(folder / "events.h5")
    return prepared(Flat(), folder / "events.h5", folder / "flat")


def generated(name: str, folder: Path, events: int) -> Dataset:
    """The generated and prepared events of a shipped recipe."""
    recipe = find(name)()
    for _ in recipe.generate(events, 1, folder / "events"):
        pass
    return prepared(recipe, folder / "events", folder / "dataset")


def prepared(recipe: Recipe, source: Path, output: Path) -> Dataset:
    options: dict[str, Any] = {
        "input": [str(source)],
        "cache": str(output.parent / "cache"),
        "split": {"train": 0.98, "val": 0.02},
    }
    return clew.prepare(recipe, output=str(output), workers=1, **options)
