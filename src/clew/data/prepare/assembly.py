"""From prepared pieces to the folder of a dataset: splits, shards, manifest, and renaming."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from clew.core.config import to_data
from clew.core.disk_errors import disk_reason
from clew.core.file_lock import hold_lock
from clew.core.files import atomic_path, sha256
from clew.data.dataset.manifest import LENGTHS, Dataset, InputFile, Manifest, Shard
from clew.data.prepare.config import PrepareConfig
from clew.data.prepare.content_keys import Parts, preparation_parts
from clew.data.prepare.executors import TaskQueue
from clew.data.prepare.inputs import InputSource, split_of, split_of_files, split_of_keys
from clew.data.prepare.shard_files import ShardPlan, write_shards
from clew.data.prepare.stage_cache import StageCache
from clew.data.prepare.worker import PreparedPiece, add_statistics, prepared_table
from clew.data.readers.items import ItemGroups
from clew.data.table import Table, hdf5
from clew.data.transforms import Transform
from clew.errors import DataError
from clew.recipe import Recipe
from clew.runs.environment import versions
from clew.storage import mask_secrets

Rows = NDArray[np.int64]
_REMOVALS = 50
"""Attempts to remove the temporary folder, 0.1 s apart."""


class DatasetAssembly:
    """A dataset that is being written to a temporary folder next to the output.

    The folder is locked while this process runs. The next preparation removes folders whose process has ended.

    Args:
        recipe: The recipe.
        config: The settings.
        cache: The cache with the prepared pieces.
    """

    def __init__(self, recipe: Recipe, config: PrepareConfig, cache: StageCache) -> None:
        self.recipe, self.config, self.cache = recipe, config, cache
        self.output = Path(config.output).absolute()
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> DatasetAssembly:
        try:
            self.output.parent.mkdir(parents=True, exist_ok=True)
            self._remove_leftovers()
            self.cache.remove_unfinished()
            names = {"prefix": f".{self.output.name}-", "suffix": ".partial"}
            self.folder = Path(tempfile.mkdtemp(**names, dir=self.output.parent))
        except OSError as error:
            raise DataError(f"{self.output}: cannot be made: {disk_reason(error) or error.strerror}") from error
        self._stack.enter_context(hold_lock(self.folder / ".lock", required=False))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self.cache.remove_unfinished()
        for _attempt in range(_REMOVALS):
            shutil.rmtree(self.folder, ignore_errors=True)
            if not self.folder.exists():
                return
            time.sleep(0.1)  # after an error in one worker, another may still write a file

    def write(self, sources: Sequence[InputSource], parts: list[list[PreparedPiece]], queue: TaskQueue) -> None:
        """Assign the events to splits and shards, and write the shards."""
        places = self._split_numbers(sources, parts)
        flat = [part for source_pieces in parts for part in source_pieces]
        # pieces without events were never prepared: their columns are not known
        places = [rows for part, rows in zip(flat, places, strict=True) if part.events]
        flat = [part for part in flat if part.events]
        self.like = prepared_table(self.cache, flat[0].key)
        statistics = add_statistics([part.statistics for part in flat])
        self.statistics = {name: statistics[name] for name in self.like if name in statistics}
        self.inputs = tuple(
            InputFile(
                name=mask_secrets(Path(s.location).name),
                bytes=s.bytes,
                sha256=s.sha256,
                events=sum(part.events for part in source_pieces),
                split=s.split,
            )
            for s, source_pieces in zip(sources, parts, strict=True)
        )
        plans = {
            name: list(
                self._plan(
                    name, [(part, np.flatnonzero(rows == number)) for part, rows in zip(flat, places, strict=True)]
                )
            )
            for number, name in enumerate(self.config.splits)
        }
        everything = [plan for source_pieces in plans.values() for plan in source_pieces]
        written = iter(write_shards(queue, self.cache, everything))
        self.splits = {name: tuple(next(written) for _ in source_pieces) for name, source_pieces in plans.items()}
        self.lengths = self._write_lengths(flat, places)

    def publish(
        self, key: str, identity: Parts, transforms: Sequence[Transform], input_items: ItemGroups | None
    ) -> None:
        """Write the manifest and move the folder to the output."""
        manifest = Manifest(
            key=key,
            recipe=self.recipe.location or type(self.recipe).__name__,
            columns={name: dataclasses.asdict(field) for name, field in self.like.schema.items()},
            splits=self.splits,
            inputs=self.inputs,
            settings={**identity["read"]["settings"], **identity["prepare"]["settings"]},
            transforms=tuple(to_data(transform) for transform in transforms),
            item_sets=hdf5.item_sets(self.like),
            input_items=input_items,
            lengths=self.lengths,
            statistics=self.statistics,
            preparation=preparation_parts(self.recipe),
            versions=versions(),
        )
        manifest.save(self.folder)
        for leftover in self.folder.glob(".*"):  # the lock, and what killed workers left half-written
            leftover.unlink()
        self.folder.chmod(0o755)
        self._move_to_output(manifest)

    def _move_to_output(self, manifest: Manifest) -> None:
        """Rename the folder to the output. An older dataset is removed; an equal one that another process has finished
        is
        kept."""
        with contextlib.suppress(DataError):
            existing = Dataset(self.output)
            if existing.manifest.key == manifest.key and existing.complete:
                return
        old = self.folder.with_name(f"{self.folder.name}.old")
        with contextlib.suppress(FileNotFoundError):
            self.output.rename(old)
        self.folder.rename(self.output)
        shutil.rmtree(old, ignore_errors=True)

    def _remove_leftovers(self) -> None:
        """Remove temporary folders of preparations that were killed."""
        for leftover in self.output.parent.glob(f".{self.output.name}-*.partial*"):
            lock = leftover / ".lock"
            with contextlib.suppress(OSError):
                if lock.exists():
                    with hold_lock(lock, timeout=0):  # OSError if its process is running
                        shutil.rmtree(leftover, ignore_errors=True)
                elif leftover.name.endswith(".old"):
                    shutil.rmtree(leftover, ignore_errors=True)

    def _split_numbers(self, sources: Sequence[InputSource], parts: list[list[PreparedPiece]]) -> list[Rows]:
        """Return the number of the split of every event, for each piece."""
        if isinstance(self.config.input, dict):
            numbers = {name: number for number, name in enumerate(self.config.splits)}
            return [
                np.full(part.events, numbers[source.split])
                for source, source_pieces in zip(sources, parts, strict=True)
                for part in source_pieces
            ]
        split, seed = self.config.shares, self.config.seed
        if self.config.split_by == "file":
            file_splits = split_of_files(
                sources, [sum(part.events for part in source_pieces) for source_pieces in parts], split, seed
            )
            return [
                np.full(part.events, place)
                for place, source_pieces in zip(file_splits, parts, strict=True)
                for part in source_pieces
            ]
        places = []
        for source, source_pieces in zip(sources, parts, strict=True):
            first = 0
            for part in source_pieces:
                if part.keys is not None:
                    places.append(split_of_keys(part.keys, split, seed))
                else:
                    places.append(split_of(source, first, part.events, split, seed))
                first += part.events
        return places

    def _plan(self, name: str, chosen: list[tuple[PreparedPiece, Rows]]) -> Iterator[ShardPlan]:
        """Divide the events of a split into as few shards as the target size allows, all of similar size."""
        sets, fixed, widths = _widths(self.like)
        costs = [
            fixed + sum(part.lengths[items][rows].astype(np.int64) * width for items, width in widths.items())
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

    def _shard(self, file: str, pieces: list[tuple[PreparedPiece, Rows]], sets: dict[str, str]) -> ShardPlan:
        events = sum(len(rows) for _, rows in pieces)
        totals = {name: sum(int(p.lengths[name][rows].sum()) for p, rows in pieces) for name in set(sets.values())}
        items = {name: totals[sets[name]] if name in sets else events for name in self.like}
        return ShardPlan(self.folder / file, tuple(pieces), items, events)

    def _write_lengths(self, parts: list[PreparedPiece], places: list[Rows]) -> Shard:
        """Write the number of items per event for every split and set of items, so that batches can be planned without
        opening shards."""
        path = self.folder / LENGTHS
        with atomic_path(path) as temporary, h5py.File(temporary, "w") as file:
            for number, name in enumerate(self.config.splits):
                group = file.create_group(name)
                for items in parts[0].lengths:
                    chosen = [p.lengths[items][rows == number] for p, rows in zip(parts, places, strict=True)]
                    group.create_dataset(items, data=np.concatenate(chosen))
        events = sum(part.events for part in parts)
        return Shard(file=LENGTHS, events=events, bytes=path.stat().st_size, sha256=sha256(path))


def _widths(like: Table) -> tuple[dict[str, str], int, dict[str, int]]:
    """Return the sets of items, the bytes per event of fixed columns, and the bytes per item of each set."""
    sets = hdf5.item_sets(like)
    fixed, widths = 0, dict.fromkeys(sets.values(), 0)
    for name, field in like.schema.items():
        size = int(np.dtype(field.dtype).itemsize * np.prod(field.shape, dtype=np.int64))
        if name in sets:
            widths[sets[name]] += size
        else:
            fixed += size
    return sets, fixed + 8 * len(widths), widths
