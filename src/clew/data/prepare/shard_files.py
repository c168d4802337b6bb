"""Writing shards. On one host all processes write to all shards at the same time; otherwise one process writes a shard.

The columns of a shard are contiguous in its file, and their sizes are known. So a file is made with its final size
first, and every piece is written to its own range of bytes. The bytes of a shard are the same in both ways. Several
hosts do not write to one file: NFS may overwrite the bytes next to those that another host writes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from clew.core.disk_errors import disk_error_text, final_path
from clew.core.files import atomic_path, sha256, write_all
from clew.data.dataset.manifest import Shard
from clew.data.prepare.executors import TaskQueue
from clew.data.prepare.stage_cache import StageCache
from clew.data.prepare.worker import PreparedPiece, prepared_table
from clew.data.table import Ragged, Table, hdf5
from clew.errors import DataError

Rows = NDArray[np.int64]
_TASKS_PER_WORKER = 8
"""Tasks that write pieces to shards, so that all workers end at about the same time."""


@dataclass(frozen=True)
class ShardPlan:
    """A shard to write: which events of which pieces, in order."""

    path: Path
    pieces: tuple[tuple[PreparedPiece, Rows], ...]
    items: dict[str, int]
    """Number of rows of each column."""
    events: int


@dataclass(frozen=True)
class _Target:
    """Where the events of a piece are written in a shard."""

    path: Path
    positions: Mapping[str, int]
    """The first byte of each array in the file."""
    rows: Rows
    first: Mapping[str, int]
    """The number of the first item of each set of items, and, under an empty name, of the first event."""


def write_shards(queue: TaskQueue, cache: StageCache, plans: Sequence[ShardPlan]) -> list[Shard]:
    """Write shards from cached pieces, and return them in order.

    Raises:
        DataError: the disk is full, or the pieces differ in their columns.
    """
    columns = {piece.columns for plan in plans for piece, _ in plan.pieces}
    if not queue.is_one_host or len(columns) > 1:
        return queue.run(_write_shard, (cache,), [_by_key(plan) for plan in plans], label=_name)
    positions = queue.run(_allocate, (cache,), [_by_key(plan, pieces=1) for plan in plans], label=_name)
    targets: dict[str, list[_Target]] = {}
    for plan, position in zip(plans, positions, strict=True):
        for key, target in _targets(plan, position):
            targets.setdefault(key, []).append(target)
    pieces = list(targets.items())
    size = -(-len(pieces) // (_TASKS_PER_WORKER * queue.width))  # a task costs the main process half a millisecond
    groups = [pieces[first : first + size] for first in range(0, len(pieces), size)]
    queue.run(_fill, (cache,), groups, label=lambda group: group[0][1][0].path.name)
    return queue.run(_finished, (), [(plan.path, plan.events) for plan in plans], label=lambda plan: plan[0].name)


@dataclass(frozen=True)
class _ShardTask:
    """A shard plan as it is sent to a worker: with the keys of the pieces."""

    path: Path
    pieces: tuple[tuple[str, Rows], ...]
    items: dict[str, int]
    events: int


def _by_key(plan: ShardPlan, pieces: int | None = None) -> _ShardTask:
    keys = tuple((piece.key, rows) for piece, rows in plan.pieces[:pieces])
    return _ShardTask(plan.path, keys, plan.items, plan.events)


def _name(task: _ShardTask) -> str:
    return task.path.name


def _targets(plan: ShardPlan, positions: Mapping[str, int]) -> Iterator[tuple[str, _Target]]:
    """Yield the key of each piece of a shard, and where its events go."""
    first: dict[str, int] = {"": 0}
    for piece, rows in plan.pieces:
        yield piece.key, _Target(plan.path, positions, rows, dict(first))
        first[""] += len(rows)
        for items, lengths in piece.lengths.items():
            first[items] = first.get(items, 0) + int(lengths[rows].sum())


def _write_shard(cache: StageCache, task: _ShardTask) -> Shard:
    """Write a shard in one process, with one piece in memory at a time."""
    with _disk_errors(task.path), atomic_path(task.path) as temporary, h5py.File(temporary, "w") as file:
        appender = None
        for key, rows in task.pieces:
            table = prepared_table(cache, key).take(rows)
            if appender is None:
                appender = hdf5.Appender(file, table, events=task.events, items=task.items)
                appender.reserve()
            appender.append(table)
    return _finished((task.path, task.events))


def _allocate(cache: StageCache, task: _ShardTask) -> dict[str, int]:
    """Make the file of a shard in its final size; return the positions of its arrays."""
    like = prepared_table(cache, task.pieces[0][0])
    with _disk_errors(task.path), h5py.File(task.path, "w") as file:
        return hdf5.Appender(file, like, events=task.events, items=task.items).reserve()


def _fill(cache: StageCache, group: Sequence[tuple[str, Sequence[_Target]]]) -> None:
    """Write some pieces to all shards that have events of them."""
    for key, targets in group:
        table = prepared_table(cache, key)
        for target in targets:
            with _disk_errors(target.path), target.path.open("r+b", buffering=0) as stream:
                for position, array in _arrays(table.take(target.rows), target):
                    content = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
                    write_all(stream.fileno(), content, position)


def _arrays(table: Table, target: _Target) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield the arrays of a table, and the byte at which each begins in the shard."""
    sets = hdf5.item_sets(table)
    for name, column in table.items():
        values = column.values if isinstance(column, Ragged) else column
        if len(values):
            first = target.first.get(sets.get(name, ""), 0)
            yield target.positions[f"columns/{name}"] + first * values[:1].nbytes, values
        if isinstance(column, Ragged) and sets[name] == name:
            offsets = column.offsets[1:] + target.first.get(name, 0)
            yield target.positions[f"offsets/{name}"] + (target.first[""] + 1) * offsets.itemsize, offsets


def _finished(shard: tuple[Path, int]) -> Shard:
    path, events = shard
    return Shard(file=path.name, events=events, bytes=path.stat().st_size, sha256=sha256(path))


@contextlib.contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    """Report a full disk in one line."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        message = disk_error_text(error, final_path(path))
        if not message:
            raise
        raise DataError(message) from error
