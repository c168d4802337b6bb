"""Shared by the benchmarks of fast simulation: showers, the contest of training steps, models with random weights."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from _contest import Sheet, Turn, in_turns

import clew
from clew import Batch, Dataset
from clew.data.dataset.batch import to_batch
from clew.data.prepare.generate import generate as generate_events
from clew.inference.generate import RecordedRunner
from clew.recipes.fastsim import FastSimulation
from clew.recipes.fastsim.networks import particles_of
from clew.settings import load_settings
from clew.training.engine import Engine

GEANT4_RATE = 4.2
"""Showers per second of Geant4 on one core at 10 GeV, with the read-out in Python: the rate that the bars refer to."""
BATCH = 64


def parametric_dataset(folder: Path, showers: int) -> Dataset:
    """Prepare parametrised showers: speed does not depend on which showers they are."""
    generate_events(FastSimulation(), showers, 1, folder / "events")
    files = [str(folder / "events")]
    return clew.prepare("fastsim", input=files, output=str(folder / "dataset"), workers=1)


def bare_loop(dataset: Dataset, device: str, turn: Turn) -> None:
    """The loop that a user with showers in memory would write: the same networks, losses and optimisers."""
    recipe, table = FastSimulation(), dataset.read("train")
    torch.manual_seed(0)
    model = recipe.model().to(device)
    optimizers = {
        name: torch.optim.RMSprop(parameters, lr=3e-4, foreach=True)
        for name, parameters in recipe.optimizers(model).items()
    }
    random = np.random.default_rng(0)
    while True:
        order = random.permutation(len(table))
        for first in range(0, len(order) - BATCH + 1, BATCH):
            turn()
            batch = to_batch(table.take(np.sort(order[first : first + BATCH])), recipe.columns).to(torch.device(device))
            for name, loss in recipe._adversarial_step(model, batch):
                optimizers[name].zero_grad(set_to_none=True)
                torch.autograd.backward(loss.mean())
                optimizers[name].step()


def clew_loop(dataset: Dataset, folder: Path, device: str, turn: Turn) -> None:
    """`clew.train`, until `turn` raises. Every step of its engine is a turn: replayed steps do not call the recipe."""
    step = Engine.step

    def step_in_turn(engine: Engine, parts: Sequence[Batch]) -> Any:
        turn()
        return step(engine, parts)

    with patch.object(Engine, "step", step_in_turn):
        clew.train("fastsim", dataset, output=folder, batch_size=BATCH, epochs=100_000, threads=1, device=device)


def training_steps(sheet: Sheet, folder: Path, dataset: Dataset, device: str, rounds: int) -> None:
    """Compare training steps of the GAN with those of the bare loop, which also runs against itself."""
    settle: Callable[[], None] = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    loops: dict[str, Callable[[Turn], None]] = {
        "bare": lambda turn: bare_loop(dataset, device, turn),
        "again": lambda turn: bare_loop(dataset, device, turn),
        "clew": lambda turn: clew_loop(dataset, folder / "run", device, turn),
    }
    steps = 20 if device == "cuda" else 4
    times = {name: np.array(each) for name, each in in_turns(loops, steps, rounds, settle).items()}
    rivals = np.concatenate([times["bare"] / times["clew"], times["again"] / times["clew"]])
    sheet.state(f"GAN, {device}: clew", steps * BATCH / float(np.median(times["clew"])), "showers/s")
    sheet.state(f"GAN, {device}: bare loop against itself", float(np.median(times["bare"] / times["again"])), "times")
    sheet.bar(f"GAN, {device}: training step of clew", float(np.median(rivals)), 0.97, "of the bare loop")


def network(kind: str, dataset: Dataset, *more: str) -> tuple[Any, Any]:
    """Return the recipe and a network of a kind with fitted tables and random weights."""
    chosen = [f"model.kind={kind}", *(["model.teacher=none"] if kind == "distilled" else []), *more]
    recipe = load_settings("fastsim", chosen).recipe
    torch.manual_seed(0)
    model: Any = recipe.model()
    table = dataset.read("train")
    batch = to_batch(table, recipe.columns)
    model.fit(particles_of(batch), batch["voxels"])
    for name, parameter in model.named_parameters():
        if "leave" in name:
            torch.nn.init.normal_(parameter, std=1e-3)
    return recipe, model


def shower_time(recipe: Any, model: Any, device: str, size: int, seconds: float) -> float:
    """Return the time per shower in milliseconds, with batches of a size that are drawn and stay on the device."""
    runner = RecordedRunner(recipe, model, torch.device(device), size)
    table = recipe.draw_inputs(np.arange(size), 1, {"energy": (10.0, 10.0)})
    batch = runner.portion(table).batches[0]
    times: list[float] = []
    with torch.inference_mode():
        runner.outputs(batch)
        start = time.perf_counter()
        while len(times) < 3 or time.perf_counter() - start < seconds:
            if device == "cuda":
                torch.cuda.synchronize()
            begun = time.perf_counter()
            runner.outputs(batch)
            if device == "cuda":
                torch.cuda.synchronize()
            times.append(time.perf_counter() - begun)
    return 1000 * float(np.median(times)) / size
