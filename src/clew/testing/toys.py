"""Two small recipes that the contract suites of strategies and rules train: a regression, and two adversarial networks.

Both write the numbers of the samples of each step to a folder, so that a suite can count them, and can fail or stop.
torch is imported inside the methods, as in any recipe.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

import clew
from clew.core.config import Section
from clew.data.dataset import Dataset
from clew.data.table import Table
from clew.metrics import Mean, Metric
from clew.recipe import Recipe
from clew.runs import Run
from clew.runs.times import time_totals

if TYPE_CHECKING:
    from torch import Tensor, nn

    from clew.data.dataset import Batch

EVENTS = 240


class ToyConfig(Section):
    """What a toy does besides training."""

    log: str = ""
    """A folder for the numbers of the samples that each process trained on."""
    fault: Literal["none", "raise", "stop"] = "none"
    """raise: every process fails. stop: the first process that gets to step `stop_at` sends itself SIGTERM, once."""
    stop_at: int = 5


class Toy(Recipe):
    """What the toys share: their samples, and what they do besides training."""

    Config = ToyConfig
    columns = ("x", "y", "number")
    steps = 0
    """Steps of this process."""

    def prepare(self, events: Table) -> Table:
        return events

    def count_step(self, batch: Batch) -> None:
        """Note the samples of a training step, and cause the fault."""
        if self.config.fault == "raise":
            raise ValueError("boom on purpose")
        if self.config.log and batch.counts:
            with (Path(self.config.log) / str(os.getpid())).open("a") as file:
                file.writelines(f"{number}\n" for number in batch["number"].tolist())
        self.steps += 1
        if self.config.fault == "stop" and self.steps == self.config.stop_at:
            try:
                Path(self.config.log).with_name("stopped").touch(exist_ok=False)
            except FileExistsError:
                return
            os.kill(os.getpid(), signal.SIGTERM)


class ToyRegression(Toy):
    """y from x through a few layers, which a pipeline can divide."""

    def model(self) -> nn.Module:
        from torch import nn

        return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1), nn.Flatten(0))

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        return model(batch["x"])

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        if outputs.requires_grad:
            self.count_step(batch)
        return (outputs - batch["y"]) ** 2


class ToyBranches(ToyRegression):
    """y from x through a model with two branches, which a pipeline can divide at `middle` and `head`.

    Values of the first branch pass by the middle one, and the order of the parameters is not that of their use.
    """

    def model(self) -> nn.Module:
        import torch
        from torch import nn

        class Branches(nn.Module):
            shift: Tensor

            def __init__(self) -> None:
                super().__init__()
                self.head, self.middle, self.first = nn.Linear(8, 1), nn.Linear(8, 8), nn.Linear(3, 8)
                self.register_buffer("shift", torch.tensor(0.1))

            def forward(self, x: Tensor, scale: Tensor) -> dict[str, Tensor]:
                first = self.first(x).tanh() + self.shift
                large = first > 0
                middle = self.middle(first).tanh() - self.shift
                value = self.head(middle) * (1 + 0.1 * scale) + torch.where(large, first, 0).mean(1, keepdim=True)
                return {"value": value.view(x.size(0))}

        return Branches()

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        return model(batch["x"], scale=batch["x"][:, :1])

    def loss(self, outputs: Any, batch: Batch) -> Tensor:
        return super().loss(outputs["value"], batch)


class ToyGame(Toy):
    """A generator of values and a critic, which takes two steps per batch. The noise of the generator is the column x.

    The generator brings its own optimiser; that of the critic comes from the settings. A random factor of the noise
    makes the result depend on the state of torch's random numbers, unless `noise` is 0.
    """

    class Config(ToyConfig):
        """Settings of the game."""

        noise: float = 0.0

    defaults = {"train": {"best": {"metric": "spread", "direction": "minimize"}}}

    def model(self) -> nn.Module:
        from torch import nn

        critic = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
        return nn.ModuleDict({"maker": nn.Linear(3, 1), "critic": critic})

    def optimizers(self, model: Any) -> Mapping[str, Any]:
        import torch

        maker_optimizer = torch.optim.SGD(model["maker"].parameters(), lr=0.01, momentum=0.5)
        return {"maker": maker_optimizer, "critic": model["critic"].parameters()}

    def forward(self, model: Any, batch: Batch) -> Any:
        return model["maker"](batch["x"])

    def step(self, model: Any, batch: Batch) -> Iterator[tuple[str, Tensor]]:
        import torch
        from torch.nn.functional import softplus

        self.count_step(batch)
        critic, x = model["critic"], batch["x"]
        for _ in range(2):
            generated = model["maker"](x + self.config.noise * torch.randn_like(x)).detach()
            yield "critic", (softplus(-critic(batch["y"][:, None])) + softplus(critic(generated))).squeeze(1)
        yield "maker", softplus(-critic(model["maker"](x))).squeeze(1)

    def metrics(self, samples: Table, outputs: Mapping[str, Any], objects: Table) -> Mapping[str, Metric]:
        return {"spread": Mean(float((outputs["output"] ** 2).sum()), float(len(samples)))}


TOYS: dict[str, type[Toy]] = {"regression": ToyRegression, "adversarial": ToyGame}
"""The toys that every strategy and rule trains."""
MODELS: dict[str, type[Toy]] = {**TOYS, "branches": ToyBranches}
"""All toys."""


def make_dataset(folder: Path) -> Dataset:
    """Return a dataset of numbered samples for both toys, written below a folder."""
    x = np.random.default_rng(3).normal(size=(EVENTS, 3)).astype(np.float32)
    y = np.tanh(x @ [1, -2, 0.5]).astype(np.float32)
    Table({"x": x, "y": y, "number": np.arange(EVENTS)}).save(folder / "events.h5")
    shares = {"train": 0.8, "val": 0.2}
    source, output = [str(folder / "events.h5")], str(folder / "dataset")
    return clew.prepare(ToyRegression(), input=source, output=output, split=shares, workers=1)


def train_toy(name: str, dataset: Dataset, folder: Path, train: Mapping[str, Any], **settings: Any) -> Run:
    """Train a toy.

    Args:
        name: Its name in `MODELS`.
        dataset: From `make_dataset`.
        folder: Where to write `run` and the numbers of the samples.
        train: Settings of `train`.
        settings: Settings of the toy.
    """
    log = folder / "samples"
    log.mkdir(parents=True, exist_ok=True)
    toy = MODELS[name]
    recipe = toy(toy.Config.model_validate({"log": str(log), **settings}))
    return clew.train(recipe, dataset, output=folder / "run", **train)


def trained_samples(folder: Path) -> Counter[str]:
    """Return how often each sample was trained on by a training in `folder`, by its number."""
    return Counter(line for file in (folder / "samples").iterdir() for line in file.read_text().split())


def check_run(run: Run, dataset: Dataset, *, epochs: int, processes: int) -> None:
    """Check that all processes ended well, every epoch was validated, and every sample was used once per epoch.

    The run must also know its speed, its time per epoch and its load time.
    """
    assert run.state == "finished"
    streams = run.streams()
    assert len(streams) == processes, f"{len(streams)} processes wrote records"
    for stream in streams:
        end = run.last("end", stream)
        assert end is not None and end["status"] == "finished", f"{stream} did not finish"
    assert {record["epoch"] for record in run.records(kind="validation")} == set(range(epochs))
    times = time_totals(run.history()).times()
    assert times.samples_per_second and times.seconds_per_epoch and times.load_seconds, f"a time is missing: {times}"
    numbers = [str(number) for number in dataset.read("train").fixed("number")]
    counted = trained_samples(run.path.parent)
    assert counted == Counter(dict.fromkeys(numbers, epochs)), "a sample was not used once per epoch"


def saved_weights(run: Run) -> dict[str, Tensor]:
    """Return the weights of a run after its last epoch."""
    from safetensors.torch import load_file

    return load_file(run.checkpoint("last"))


def first_weights(name: str) -> dict[str, Tensor]:
    """Return the weights with which a toy starts, with the seed 0."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return MODELS[name]().model().state_dict()
