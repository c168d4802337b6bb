"""Training speed of the particle-flow network on a CPU: packed events against the same network on padded events.

The rival is the published network in its usual form (`tests.recipes.particleflow.padded_network`): events padded to
6,400 elements, separate matrix products, automatic differentiation. Both have the same weights, use the same events,
and run complete steps with Adam, one event per step. The contestants take turns, and the 25th percentiles of their
blocks are compared. The padded network against itself is the control. Events are random, with the published number of
elements (mean 5,033, standard deviation 340): the speed does not depend on their content.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _contest import Sheet, alternate, main, options, quartile, seconds
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent.parent))

from clew.recipes.particleflow.graph_network import GraphFlow
from clew.recipes.particleflow.loss import element_losses
from clew.recipes.particleflow.settings import ParticleFlowLossConfig, ParticleFlowNetworkConfig
from tests.recipes.particleflow.padded_network import padded_forward

LENGTH, MEAN, SPREAD = 6400, 5033, 340
THREADS = 2


def random_event(rng: np.random.Generator, count: int) -> tuple[Tensor, Tensor]:
    """Elements (count, 12) and targets (count, 7) of order one."""
    elements = torch.from_numpy(rng.normal(size=(count, 12)).astype(np.float32))
    elements[:, 0] = torch.from_numpy(rng.integers(1, 3, count).astype(np.float32))
    targets = torch.from_numpy(rng.normal(size=(count, 7)).astype(np.float32))
    targets[:, 0] = torch.from_numpy(rng.integers(0, 6, count).astype(np.float32))
    return elements, targets


class Training:
    """One network and its optimiser; `padded` is the form of its input."""

    def __init__(self, settings: ParticleFlowNetworkConfig, *, padded: bool, length: int) -> None:
        torch.manual_seed(1)
        self.network, self.padded, self.length = GraphFlow(settings), padded, length
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=1e-4)

    def outputs(self, elements: Tensor) -> dict[str, Tensor]:
        if not self.padded:
            return self.network(elements, torch.tensor([0, len(elements)]))  # type: ignore[no-any-return]
        wide = torch.nn.functional.pad(elements, (0, 0, 0, self.length - len(elements)))
        return padded_forward(self.network, wide.unsqueeze(0))[0]

    def step(self, elements: Tensor, targets: Tensor) -> float:
        self.optimizer.zero_grad(set_to_none=True)
        outputs = self.outputs(elements)
        if self.padded:
            targets = torch.nn.functional.pad(targets, (0, 0, 0, self.length - len(targets))).unsqueeze(0)
            real = torch.arange(self.length) < len(elements)
            loss = (element_losses(outputs, targets, ParticleFlowLossConfig()) * real).sum() / len(elements)
        else:
            loss = element_losses(outputs, targets, ParticleFlowLossConfig()).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return loss.item()


def measure(sheet: Sheet, folder: Path, arguments: argparse.Namespace) -> Mapping[str, Any]:
    torch.set_num_threads(THREADS)
    rng, rounds = np.random.default_rng(1), 3 if arguments.quick else 8
    lengths = np.clip(rng.normal(MEAN, SPREAD, rounds + 1), 1000, LENGTH).astype(int).tolist()
    events = [random_event(rng, n) for n in lengths]
    contestants = {
        "padded": Training(ParticleFlowNetworkConfig(), padded=True, length=LENGTH),
        "padded again": Training(ParticleFlowNetworkConfig(), padded=True, length=LENGTH),
        "packed": Training(ParticleFlowNetworkConfig(), padded=False, length=LENGTH),
    }
    blocks: dict[str, Callable[[], float]] = {
        name: partial(_block, training, iter([*events, *events])) for name, training in contestants.items()
    }
    times = alternate(blocks, rounds)
    rate = {name: 1 / quartile(each) for name, each in times.items()}
    for name, value in rate.items():
        sheet.state(f"{name}, a step of one event", value, "events/s")
    sheet.state("control: padded against itself", rate["padded again"] / rate["padded"], "x")
    sheet.bar("packed against padded, 2 threads", rate["packed"] / rate["padded"], 1.3, "x")
    _threads(sheet, events[0])
    real = sum(lengths) / (len(lengths) * LENGTH)
    sheet.state("share of padding in the padded network", 1 - real, "")
    return {"threads": THREADS, "rounds": rounds, "parameters": _size(contestants["packed"].network)}


def _threads(sheet: Sheet, event: tuple[Tensor, Tensor]) -> None:
    """The effect of another number of threads: bins of elements at first, and the loss after three steps."""
    bins, losses = [], []
    for threads in (1, 1, 2):
        torch.set_num_threads(threads)
        training = Training(ParticleFlowNetworkConfig(), padded=False, length=LENGTH)
        bins.append(training.network.bins(event[0], torch.tensor([0, len(event[0])])))
        losses.append([training.step(*event) for _ in range(3)][-1])
    torch.set_num_threads(THREADS)
    sheet.bar("one thread twice: the loss of the third step differs by", abs(losses[1] - losses[0]), 0, "", lower=True)
    for place, layer in enumerate((bins[0] != bins[2]).flatten(1).double().mean(dim=1).tolist()):
        sheet.state(f"1 and 2 threads: elements in another bin, layer {place + 1}", 1e6 * layer, "per million")
    sheet.state("1 and 2 threads: relative difference of the third loss", 1e6 * abs(losses[2] / losses[0] - 1), "1e-6")


def _block(training: Training, events: Any) -> float:
    event = next(events)
    return seconds(lambda: training.step(*event))


def _size(network: GraphFlow) -> int:
    return sum(each.numel() for each in network.parameters())


if __name__ == "__main__":
    sys.exit(main(measure, options(__doc__)))
