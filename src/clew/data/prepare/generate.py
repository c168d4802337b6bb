"""Generate synthetic events with a recipe, in several processes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path

from clew.data.prepare.executors import TaskQueue, executor_factory
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
    """Write synthetic events to a folder. The files do not depend on the number of workers.

    Args:
        recipe: A recipe with `generate`. If it cannot begin at a given event, one process generates all events.
        events: Number of events.
        seed: Seed of the generator.
        folder: Folder of the files.
        workers: Number of processes. By default the number of cores.
        progress: Called with the path and the number of events of each file.

    Returns:
        The number of events.
    """
    sequential = "first" not in inspect.signature(recipe.generate).parameters or not recipe.location
    starts = [0] if sequential else list(range(0, events, recipe.events_per_file))
    open_executor, width = executor_factory("processes", 1 if len(starts) == 1 else workers)

    def report(start: int, files: list[tuple[Path, int]]) -> None:
        for path, count in files:
            progress(path, count)

    with TaskQueue(open_executor, width) as queue:
        shared = (recipe, events, seed, folder, sequential)
        parts = queue.run(_generate_part, shared, starts, label=lambda start: f"events from {start}", on_result=report)
    return sum(count for files in parts for _, count in files)


def _generate_part(
    recipe: Recipe, events: int, seed: int, folder: Path, sequential: bool, start: int
) -> list[tuple[Path, int]]:
    if sequential:
        return list(recipe.generate(events, seed, folder))
    return list(recipe.generate(min(recipe.events_per_file, events - start), seed, folder, start))
