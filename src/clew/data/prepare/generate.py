"""Synthetic events by a recipe's generator, in as many processes as there are cores."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path

from clew.data.prepare.executors import Queue, factory
from clew.recipe import Recipe


def generate(
    recipe: Recipe,
    events: int,
    seed: int,
    folder: Path,
    *,
    workers: int | None = None,
    progress: Callable[[Path, int], None] = lambda path, count: None,
) -> int:
    """Write events under `folder` and return how many; the files do not depend on `workers` (default: all cores).

    `progress` is told of every file and its events. A generator that cannot begin in the middle works alone.
    """
    whole = "first" not in inspect.signature(recipe.generate).parameters or not recipe.location
    starts = [0] if whole else list(range(0, events, recipe.events_per_file))
    open_executor, width = factory("processes", 1 if len(starts) == 1 else workers)

    def done(start: int, files: list[tuple[Path, int]]) -> None:
        for path, count in files:
            progress(path, count)

    with Queue(open_executor, width) as queue:
        shared = (recipe, events, seed, folder, whole)
        found = queue.run(_part, shared, starts, label=lambda start: f"events from {start}", done=done)
    return sum(count for files in found for _, count in files)


def _part(recipe: Recipe, events: int, seed: int, folder: Path, whole: bool, start: int) -> list[tuple[Path, int]]:
    if whole:
        return list(recipe.generate(events, seed, folder))
    return list(recipe.generate(min(recipe.events_per_file, events - start), seed, folder, start))
