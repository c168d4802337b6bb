"""Peak memory of graphs, network and tracks of one large event, whole or in sectors. Linux only."""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

RECIPE = "clew.recipes.tracking:Triplets"
WARM = 1.0
"""Pile-up of the event that loads and compiles everything first."""


def peak(work: str, sectors: int, pileup: float, seed: int) -> float:
    """MB that a piece of work needs at its peak, in a process of its own, in addition to what it had before.

    Args:
        work: `tracks` (graph, network and tracks of an event) or `step` (a training step on the first sample).
        sectors: Number of sectors of the event.
        pileup: Mean number of other vertices.
        seed: Seed of the event.
    """
    if not sys.platform.startswith("linux"):
        return float("nan")
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_measure, work, sectors, pileup, seed).result()


def _measure(work: str, sectors: int, pileup: float, seed: int) -> float:
    import torch

    from clew.recipes.tracking.acts import simulate_acts
    from clew.recipes.tracking.particle_gun import ParticleGun
    from clew.recipes.tracking.recipe_triplets import whole_detector_hits
    from clew.settings import load_settings

    torch.set_num_threads(1)
    recipe: Any = load_settings(RECIPE, [f"sectors.number={sectors}"]).recipe
    model = recipe.model()
    small, large = (
        whole_detector_hits(simulate_acts(1, seed, gun=ParticleGun(particles="ttbar-like", pileup=each)))
        for each in (WARM, pileup)
    )
    run = {"tracks": _find, "step": _step}[work]
    run(recipe, model, small)
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
    before = _status("VmRSS")
    run(recipe, model, large)
    return _status("VmHWM") - before


def _find(recipe: Any, model: Any, events: Any) -> None:
    import torch

    from clew.data.dataset.batch import to_batch
    from clew.recipes.tracking import whole_event

    def score(samples: Any) -> Any:
        with torch.inference_mode():
            return np.asarray(model(to_batch(samples, recipe.columns)).numpy())

    whole_event.find_tracks(recipe, score, events)


def _step(recipe: Any, model: Any, events: Any) -> None:
    from clew.data.dataset.batch import to_batch
    from clew.recipes.tracking.sectors import split_events

    first = next(split_events(events, recipe.config.sectors))
    batch = to_batch(recipe.prepare(first), recipe.columns)
    recipe.loss(model(batch), batch).total.backward()


def _status(name: str) -> float:
    """A value of /proc/self/status in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(name)) / 1024
