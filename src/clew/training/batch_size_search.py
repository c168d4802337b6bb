"""Search for the fastest batch size of a machine, or the largest that fits into memory, by measuring steps."""

from __future__ import annotations

import gc
import time
from typing import Any

import numpy as np
import psutil
import torch

from clew.data.dataset import Dataset
from clew.data.dataset.batch import to_batch
from clew.data.dataset.sample_store import DiskSamples
from clew.errors import ConfigError
from clew.recipe import Recipe
from clew.runs import RecordWriter, Run
from clew.training.config import TrainConfig
from clew.training.engine import Engine
from clew.training.strategies import Strategy
from clew.training.training_data import training_columns

_SEARCH_SECONDS = 40.0
"""Time limit of the search."""
_SIZE_SECONDS = 1.0
"""Time limit per size; at least three steps are measured."""
_NEAR_BEST = 0.95
"""A smaller batch with this fraction of the best speed is preferred, because it makes more updates per sample."""
_MIN_STEPS = 20
"""Minimum number of steps per epoch: with fewer, training would be fast but make too few updates."""
_MEMORY_LIMIT = 0.9
"""Fraction of the memory of a device that may be used."""


def find_batch_size(recipe: Recipe, config: TrainConfig, dataset: Dataset, device: torch.device) -> dict[str, Any]:
    """Find the batch size for one process.

    `auto` selects the smallest size whose speed is within 5% of the best; `largest` the largest that fits.

    Returns:
        `chosen`, the size; `tried`, samples per second for each size; `seconds`, the duration of the search.

    Raises:
        ConfigError: Not even one sample fits into memory.
    """
    start, speeds = time.monotonic(), dict[int, float]()
    store, samples = DiskSamples(dataset, "train", training_columns(recipe, dataset)), dataset.splits["train"]
    engine = _make_engine(recipe, config, device)
    size, largest = 1, config.batch_size == "largest"
    limit = samples if largest else max(1, samples // _MIN_STEPS)
    while size <= limit and time.monotonic() - start < _SEARCH_SECONDS:
        speed = _measure_speed(engine, recipe, store, size, device)
        if speed is None:
            break
        speeds[size] = speed
        if not largest and _past_best(speeds):
            break
        size *= 2
    del engine
    gc.collect()
    if not speeds:
        raise ConfigError("train.batch_size auto: not even one sample fits into memory")
    best = max(speeds.values())
    chosen = max(speeds) if largest else min(size for size, speed in speeds.items() if speed >= _NEAR_BEST * best)
    return {"chosen": chosen, "tried": {str(s): v for s, v in speeds.items()}, "seconds": time.monotonic() - start}


def _make_engine(recipe: Recipe, config: TrainConfig, device: torch.device) -> Engine:
    """Make an engine with a temporary model. The random state is left unchanged."""
    state = torch.get_rng_state()
    model = recipe.model().to(device)
    engine = Engine(recipe, model, config.model_copy(update={"batch_size": 1, "ema": None}), Strategy(), device)
    torch.set_rng_state(state)
    return engine


def _measure_speed(engine: Engine, recipe: Recipe, store: DiskSamples, size: int, device: torch.device) -> float | None:
    """Return samples per second at this size, or None if it does not fit into memory."""
    if psutil.virtual_memory().available < 0.1 * psutil.virtual_memory().total:
        return None
    batch = to_batch(store.read(np.arange(size, dtype=np.int64)), recipe.columns).to(device)
    times: list[float] = []
    try:
        engine.step([batch])
        while len(times) < 3 or (sum(times) < _SIZE_SECONDS and len(times) < 20):
            _synchronize(device)
            start = time.perf_counter()
            engine.step([batch])
            _synchronize(device)
            times.append(time.perf_counter() - start)
            if sum(times) > 3 * _SIZE_SECONDS:
                break
    except (torch.OutOfMemoryError, RuntimeError) as error:
        if isinstance(error, torch.OutOfMemoryError) or "memory" in str(error):
            torch.accelerator.empty_cache() if device.type != "cpu" else gc.collect()
            return None
        raise
    return size / float(np.median(times)) if _fits(device) else None


def _past_best(speeds: dict[int, float]) -> bool:
    """Whether the last two doublings brought no improvement."""
    values = list(speeds.values())
    return len(values) > 3 and max(values[-2:]) < max(values[:-2]) / _NEAR_BEST


def _synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def _fits(device: torch.device) -> bool:
    if device.type == "cpu":
        return True
    free, total = torch.accelerator.get_memory_info(device)
    reserved = torch.accelerator.memory_reserved(device)
    peak = torch.accelerator.max_memory_allocated(device)
    return bool(peak <= _MEMORY_LIMIT * (free + reserved) or total == 0)


def with_batch_size(
    run: Run, recipe: Recipe, config: TrainConfig, strategy: Strategy, writer: RecordWriter, device: torch.device
) -> TrainConfig:
    """Return the settings with a batch size as a number. Rank 0 searches one if the settings give none."""
    if isinstance(config.batch_size, int):
        return config
    result = None
    if strategy.rank == 0:
        result = find_batch_size(recipe, config, Dataset(config.dataset), device)
    result = strategy.gather(result)[0]
    size = min(result["chosen"] * strategy.share[1], Dataset(config.dataset).splits["train"])
    writer.write("batch_size", **{**result, "chosen": size})
    if strategy.rank == 0:
        run.save_settings(batch_size=size)
    return config.model_copy(update={"batch_size": size})
