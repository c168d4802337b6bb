"""From prepared pieces to the dataset's folder: splits, shards, manifest, and a rename."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from clew.core.config import to_data
from clew.core.file_lock import hold_lock
from clew.core.files import atomic, sha256
from clew.data.dataset.manifest import LENGTHS, Dataset, Input, Manifest, Shard
from clew.data.prepare.config import PrepareConfig
from clew.data.prepare.content_keys import Parts
from clew.data.prepare.executors import Queue
from clew.data.prepare.inputs import Source, split_of, split_of_files, split_of_keys
from clew.data.prepare.stage_cache import Cache
from clew.data.prepare.worker import Part, ShardPlan, add_statistics, write_shard
from clew.data.table import Table, hdf5
from clew.data.transforms import Transform
from clew.errors import DataError
from clew.recipe import Recipe
from clew.runs.environment import versions
from clew.storage import mask_secrets

Rows = NDArray[np.int64]


class Assembly:
    """A dataset being put together in a folder of its own beside the output.

    The folder is locked while we live; those whose owner is dead are swept away by the next to come.
    """

    def __init__(self, recipe: Recipe, config: PrepareConfig, cache: Cache) -> None:
        self.recipe, self.config, self.cache = recipe, config, cache
        self.output = Path(config.output).absolute()
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Assembly:
        try:
            self.output.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(f"{self.output}: cannot be made ({error.strerror})") from error
        self._sweep()
        self.folder = Path(tempfile.mkdtemp(prefix=f".{self.output.name}-", suffix=".partial", dir=self.output.parent))
        self._stack.enter_context(hold_lock(self.folder / ".lock", required=False))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def write(self, sources: Sequence[Source], parts: list[list[Part]], queue: Queue) -> None:
        """Decide on splits and shards, and write them."""
        places = self._places(sources, parts)
        flat = [part for found in parts for part in found]
        # pieces without events were never prepared: their columns tell nothing
        places = [rows for part, rows in zip(flat, places, strict=True) if part.events]
        flat = [part for part in flat if part.events]
        self.like = _table(self.cache, flat[0])
        statistics = add_statistics([part.statistics for part in flat])
        self.statistics = {name: statistics[name] for name in self.like if name in statistics}
        self.inputs = tuple(
            Input(
                name=mask_secrets(Path(s.location).name),
                bytes=s.bytes,
                sha256=s.sha256,
                events=sum(part.events for part in found),
                split=s.split,
            )
            for s, found in zip(sources, parts, strict=True)
        )
        plans = {
            name: list(
                self._plan(
                    name, [(part, np.flatnonzero(rows == number)) for part, rows in zip(flat, places, strict=True)]
                )
            )
            for number, name in enumerate(self.config.splits)
        }
        everything = [plan for found in plans.values() for plan in found]
        written = iter(queue.run(write_shard, (self.cache,), everything, label=lambda plan: plan.path.name))
        self.splits = {name: tuple(next(written) for _ in found) for name, found in plans.items()}
        self.lengths = self._write_lengths(flat, places)

    def publish(self, key: str, identity: Parts, transforms: Sequence[Transform]) -> None:
        """Write the manifest and put the folder in its place."""
        manifest = Manifest(
            key=key,
            recipe=self.recipe.location or type(self.recipe).__name__,
            columns={name: dataclasses.asdict(field) for name, field in self.like.schema.items()},
            splits=self.splits,
            inputs=self.inputs,
            settings={**identity["read"]["settings"], **identity["prepare"]["settings"]},
            transforms=tuple(to_data(transform) for transform in transforms),
            item_sets=hdf5.item_sets(self.like),
            lengths=self.lengths,
            statistics=self.statistics,
            versions=versions(),
        )
        manifest.save(self.folder)
        for left in self.folder.glob(".*"):  # the lock, and what killed workers left half-written
            left.unlink()
        self.folder.chmod(0o755)
        self._place(manifest)

    def _place(self, manifest: Manifest) -> None:
        """Rename into the output's place; an older dataset goes, an equal one that came in meanwhile stays."""
        with contextlib.suppress(DataError):
            there = Dataset(self.output)
            if there.manifest.key == manifest.key and there.complete:
                return
        old = self.folder.with_name(f"{self.folder.name}.old")
        with contextlib.suppress(FileNotFoundError):
            self.output.rename(old)
        self.folder.rename(self.output)
        shutil.rmtree(old, ignore_errors=True)

    def _sweep(self) -> None:
        """Remove what a killed preparation left beside the output."""
        for left in self.output.parent.glob(f".{self.output.name}-*.partial*"):
            lock = left / ".lock"
            with contextlib.suppress(OSError):
                if lock.exists():
                    with hold_lock(lock, timeout=0):  # OSError if its process is running
                        shutil.rmtree(left, ignore_errors=True)
                elif left.name.endswith(".old"):
                    shutil.rmtree(left, ignore_errors=True)

    def _places(self, sources: Sequence[Source], parts: list[list[Part]]) -> list[Rows]:
        """The split of every event, part by part."""
        if isinstance(self.config.input, dict):
            numbers = {name: number for number, name in enumerate(self.config.splits)}
            return [
                np.full(part.events, numbers[source.split])
                for source, found in zip(sources, parts, strict=True)
                for part in found
            ]
        split, seed = self.config.shares, self.config.seed
        if self.config.split_by == "file":
            each = split_of_files(sources, [sum(part.events for part in found) for found in parts], split, seed)
            return [np.full(part.events, place) for place, found in zip(each, parts, strict=True) for part in found]
        places = []
        for source, found in zip(sources, parts, strict=True):
            first = 0
            for part in found:
                if part.keys is not None:
                    places.append(split_of_keys(part.keys, split, seed))
                else:
                    places.append(split_of(source, first, part.events, split, seed))
                first += part.events
        return places

    def _plan(self, name: str, chosen: list[tuple[Part, Rows]]) -> Iterator[ShardPlan]:
        """Cut the events of a split into as few shards as the target size allows, all of about the same size."""
        sets, fixed, widths = _widths(self.like)
        costs = [
            fixed + sum(part.lengths[each][rows].astype(np.int64) * width for each, width in widths.items())
            for part, rows in chosen
        ]
        wide = [np.broadcast_to(cost, len(rows)) for cost, (_, rows) in zip(costs, chosen, strict=True)]
        ends = np.cumsum(np.concatenate(wide))
        total = int(ends[-1]) if len(ends) else 0
        shards = -(-total // int(self.config.shard_mb * 1e6))
        numbers = (ends - 1) * shards // max(total, 1)
        places = np.split(numbers, np.cumsum([len(rows) for _, rows in chosen])[:-1])
        for shard in range(shards):
            pieces = [(part, rows[of == shard]) for (part, rows), of in zip(chosen, places, strict=True)]
            pieces = [(part, rows) for part, rows in pieces if len(rows)]
            if pieces:
                yield self._shard(f"{name}-{shard:05d}.h5", pieces, sets)

    def _shard(self, file: str, pieces: list[tuple[Part, Rows]], sets: dict[str, str]) -> ShardPlan:
        events = sum(len(rows) for _, rows in pieces)
        totals = {name: sum(int(p.lengths[name][rows].sum()) for p, rows in pieces) for name in set(sets.values())}
        items = {name: totals[sets[name]] if name in sets else events for name in self.like}
        return ShardPlan(self.folder / file, tuple((part.key, rows) for part, rows in pieces), items, events)

    def _write_lengths(self, parts: list[Part], places: list[Rows]) -> Shard:
        """Items an event, for every split and set of items, so that batches can be planned without opening shards."""
        path = self.folder / LENGTHS
        with atomic(path) as temporary, h5py.File(temporary, "w") as file:
            for number, name in enumerate(self.config.splits):
                group = file.create_group(name)
                for each in parts[0].lengths:
                    chosen = [p.lengths[each][rows == number] for p, rows in zip(parts, places, strict=True)]
                    group.create_dataset(each, data=np.concatenate(chosen))
        events = sum(part.events for part in parts)
        return Shard(file=LENGTHS, events=events, bytes=path.stat().st_size, sha256=sha256(path))


def _widths(like: Table) -> tuple[dict[str, str], int, dict[str, int]]:
    """Sets of items, bytes an event of fixed columns, bytes an item of each set."""
    sets = hdf5.item_sets(like)
    fixed, widths = 0, dict.fromkeys(sets.values(), 0)
    for name, field in like.schema.items():
        size = int(np.dtype(field.dtype).itemsize * np.prod(field.shape, dtype=np.int64))
        if name in sets:
            widths[sets[name]] += size
        else:
            fixed += size
    return sets, fixed + 8 * len(widths), widths


def _table(cache: Cache, part: Part) -> Table:
    table = cache.get("prepare", part.key)
    if table is None:
        raise DataError(f"a prepared piece vanished from the cache {cache.folder} meanwhile; prepare again")
    return table
