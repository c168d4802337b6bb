"""The same LightningModule trained by clew and by Lightning's Trainer.

Contestants take turns in one process on one core, as in train.py, but blocks are measured in seconds of processor time,
so other work on the machine matters less. The Trainer runs at its fastest (`barebones`), on batches that are cut from
tensors in memory. clew is `clew.train(module, ...)` as users call it, with its records and checkpoints. The control is
the Trainer against itself. This file is not called lightning.py, because Python would then import it as Lightning.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import itertools
import logging
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import lightning
import torch
from _contest import Sheet, Turn, in_turns, main, options, quartile
from _tasks import Flat, flat_events
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

import clew


class Perceptron(lightning.LightningModule):
    """Binary classification of 20 numbers."""

    turns: ClassVar[dict[str, Turn]] = {}
    """What each contestant calls at the start of a step."""

    def __init__(self, contestant: str, hidden: tuple[int, ...]) -> None:
        super().__init__()
        self.contestant = contestant
        widths = (Flat.features, *hidden)
        layers = [each for i, o in itertools.pairwise(widths) for each in (nn.Linear(i, o), nn.ReLU())]
        self.net = nn.Sequential(*layers, nn.Linear(widths[-1], 1), nn.Flatten(0))

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.net(x)
        return output

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.turns[self.contestant]()
        loss = binary_cross_entropy_with_logits(self(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> Tensor:
        return binary_cross_entropy_with_logits(self(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3, fused=True)


@dataclass(frozen=True)
class Case:
    """One size of the network."""

    name: str
    hidden: tuple[int, ...]
    steps: int
    """Steps of a block."""
    limit: float
    size: int = 128


CASES = (
    Case("MLP 20-64-64-1", (64, 64), 50, 1.5),
    Case("MLP of 8 million parameters", (2000, 2000, 2000), 2, 0.97),
)


def with_trainer(case: Case, data: tuple[Tensor, Tensor], contestant: str, turn: Turn) -> None:
    """Train with Lightning's Trainer, without anything that can be left out, until `turn` raises."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    Perceptron.turns[contestant] = turn

    class Epochs:
        def __iter__(self) -> Iterator[Any]:
            for index in torch.split(torch.randperm(len(data[0])), case.size):
                yield data[0][index], data[1][index]

        def __len__(self) -> int:  # without it, Lightning fetches one batch more to see whether there is one
            return -(-len(data[0]) // case.size)

    torch.manual_seed(0)
    trainer = lightning.Trainer(accelerator="cpu", devices=1, max_epochs=-1, barebones=True)
    trainer.fit(Perceptron(contestant, case.hidden), Epochs())


def with_clew(case: Case, data: tuple[Tensor, Tensor], folder: Path, turn: Turn) -> None:
    """Train with `clew.train`, until `turn` raises."""
    Perceptron.turns["clew"] = turn
    torch.manual_seed(0)
    arrays = tuple(tensor.numpy() for tensor in data)
    few = tuple(array[:1000] for array in arrays)
    settings: dict[str, Any] = {"batch_size": case.size, "epochs": 100_000, "threads": 1}
    clew.train(Perceptron("clew", case.hidden), arrays, few, output=folder, progress=False, **settings)


def measure(sheet: Sheet, folder: Path, arguments: argparse.Namespace) -> Mapping[str, Any]:
    """Run all cases; return the conditions."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    table = flat_events()
    data = (torch.from_numpy(table.fixed("x")).clone(), torch.from_numpy(table.fixed("y")).clone())
    rounds = 30 if arguments.quick else 200
    for case in CASES:
        loops = {name: partial(with_trainer, case, data, name) for name in ("Trainer", "Trainer again")}
        loops["clew"] = partial(with_clew, case, data, folder / case.name.replace(" ", "-"))
        times = in_turns(loops, case.steps, rounds, clock=time.process_time)
        for name, blocks in times.items():
            sheet.state(f"{case.name}: {name}", case.steps * case.size / quartile(blocks), "samples/CPU s")
        control = quartile(times["Trainer"]) / quartile(times["Trainer again"])
        sheet.state(f"{case.name}: control, Trainer against itself", control, "times")
        speed = quartile([*times["Trainer"], *times["Trainer again"]]) / quartile(times["clew"])
        sheet.bar(f"{case.name}: clew against Trainer", speed, case.limit, "times")
    return {"threads": 1, "blocks": rounds, "lightning": importlib.metadata.version("lightning")}


if __name__ == "__main__":
    sys.exit(main(measure, options(__doc__)))
