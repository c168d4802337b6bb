"""The batch size that a machine is fastest with, or the largest it can hold: tried, not guessed."""

from __future__ import annotations

import gc
import time
from typing import Any

import numpy as np
import psutil
import torch

from clew.data.dataset import Dataset
from clew.data.dataset.batch import to_batch
from clew.data.dataset.sample_store import Disk
from clew.errors import ConfigError
from clew.recipe import Recipe
from clew.training.config import TrainConfig
from clew.training.engine import Engine
from clew.training.strategies import Strategy

_SECONDS = 40.0
"""For the whole search."""
_EACH = 1.0
"""For one size, at most; at least three steps are timed."""
_NEAR = 0.95
"""A smaller batch that reaches this share of the best speed is preferred: it learns more from each sample."""
_STEPS = 20
"""Fewer steps than this in an epoch would be fast and learn nothing."""
_FULL = 0.9
"""Share of a device's memory that may be used."""


def find_batch_size(
    recipe: Recipe, config: TrainConfig, dataset: Dataset, columns: Any, device: torch.device
) -> dict[str, Any]:
    """The batch size for one process, and what was tried: samples/s by size.

    `auto` is the fastest (the smallest within 5% of the best), `largest` the largest that fits.

    Raises:
        ConfigError: not even one sample fits.
    """
    begun, tried = time.monotonic(), dict[int, float]()
    store, samples = Disk(dataset, "train", columns), dataset.splits["train"]
    engine = _engine(recipe, config, device)
    size, largest = 1, config.batch_size == "largest"
    limit = samples if largest else max(1, samples // _STEPS)
    while size <= limit and time.monotonic() - begun < _SECONDS:
        speed = _speed(engine, recipe, store, size, device)
        if speed is None:
            break
        tried[size] = speed
        if not largest and _past_best(tried):
            break
        size *= 2
    del engine
    gc.collect()
    if not tried:
        raise ConfigError("train.batch_size auto: not even one sample fits into memory")
    best = max(tried.values())
    chosen = max(tried) if largest else min(size for size, speed in tried.items() if speed >= _NEAR * best)
    return {"chosen": chosen, "tried": {str(s): v for s, v in tried.items()}, "seconds": time.monotonic() - begun}


def _engine(recipe: Recipe, config: TrainConfig, device: torch.device) -> Engine:
    """A model to throw away, trained at a rate that does not matter."""
    state = torch.get_rng_state()
    model = recipe.model().to(device)
    alone = config.model_copy(update={"batch_size": 1, "ema": None})
    made = Engine(recipe, model, alone, Strategy(), device)
    torch.set_rng_state(state)
    return made


def _speed(engine: Engine, recipe: Recipe, store: Disk, size: int, device: torch.device) -> float | None:
    """Samples/s at this size, or None where it does not fit."""
    if psutil.virtual_memory().available < 0.1 * psutil.virtual_memory().total:
        return None
    batch = to_batch(store.read(np.arange(size, dtype=np.int64)), recipe.columns).to(device)
    times: list[float] = []
    try:
        engine.step([batch])
        while len(times) < 3 or (sum(times) < _EACH and len(times) < 20):
            _wait(device)
            begun = time.perf_counter()
            engine.step([batch])
            _wait(device)
            times.append(time.perf_counter() - begun)
            if sum(times) > 3 * _EACH:
                break
    except (torch.OutOfMemoryError, RuntimeError) as error:
        if isinstance(error, torch.OutOfMemoryError) or "memory" in str(error):
            torch.accelerator.empty_cache() if device.type != "cpu" else gc.collect()
            return None
        raise
    return size / float(np.median(times)) if _fits(device) else None


def _past_best(tried: dict[int, float]) -> bool:
    """Whether the last two doublings brought nothing."""
    speeds = list(tried.values())
    return len(speeds) > 3 and max(speeds[-2:]) < max(speeds[:-2]) / _NEAR


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def _fits(device: torch.device) -> bool:
    if device.type == "cpu":
        return True
    free, total = torch.accelerator.get_memory_info(device)
    reserved = torch.accelerator.memory_reserved(device)
    peak = torch.accelerator.max_memory_allocated(device)
    return bool(peak <= _FULL * (free + reserved) or total == 0)
