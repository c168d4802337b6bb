"""Where samples are while a run trains: whole in memory, compressed in memory, or on disk."""

from __future__ import annotations

import bisect
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from clew.dataset.manifest import Dataset
from clew.table import Ragged, Table, concat
from clew.table.hdf5 import item_sets
from clew.table.ragged import offsets_of

Numbers = NDArray[np.int64]
Keep = Literal["memory", "compressed", "disk"]


class Store(Protocol):
    """Samples by number. `read` may be called from one thread at a time, which need not be the main one."""

    facts: dict[str, float]
    """What is worth telling: bytes held, compression ratio, seconds and bytes of decompression so far."""

    def __len__(self) -> int:
        """All samples of the split, held here or not."""

    def read(self, numbers: Numbers) -> Table:
        """These samples, in this order."""


def open_store(
    dataset: Dataset, split: str, *, keep: Keep, columns: Sequence[str] | None, own: Numbers | None = None, block: int
) -> Store:
    """The samples of a split. `own` (sorted; default: all) are those that will be asked for, `block` neighbours at a
    time; the others are not held."""
    if keep == "memory":
        return Memory(dataset.read(split, columns=columns))
    disk = Disk(dataset, split, columns)
    return disk if keep == "disk" else Compressed(disk, own, block)


class Memory:
    """A table as it is."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.facts = {"bytes": float(table.nbytes)}

    def __len__(self) -> int:
        return len(self.table)

    def read(self, numbers: Numbers) -> Table:
        return self.table.take(numbers)


class Disk:
    """Shards on disk; neighbouring samples are read in one go."""

    def __init__(self, dataset: Dataset, split: str, columns: Sequence[str] | None) -> None:
        self._dataset, self._split, self._columns = dataset, split, columns
        self._starts = np.cumsum([0, *(shard.events for shard in dataset.manifest.splits[split])]).tolist()
        self.facts = {"read_bytes": 0.0, "read_seconds": 0.0}

    def __len__(self) -> int:
        return int(self._starts[-1])

    def read(self, numbers: Numbers) -> Table:
        begun = time.perf_counter()
        order = np.unique(numbers)
        tables = [self.run(int(first), int(last) + 1) for first, last in _runs(order)]
        whole = concat(tables)
        self.facts["read_bytes"] += whole.nbytes
        self.facts["read_seconds"] += time.perf_counter() - begun
        return whole.take(np.searchsorted(order, numbers))

    def run(self, start: int, stop: int) -> Table:
        """Samples start to stop, out of as many shards as they lie in."""
        first = bisect.bisect_right(self._starts, start) - 1
        found = []
        for place in range(first, len(self._starts) - 1):
            begin, end = self._starts[place], self._starts[place + 1]
            if begin >= stop:
                break
            rows = (max(start, begin) - begin, min(stop, end) - begin)
            found.append(self._dataset.rows(self._split, place, *rows, columns=self._columns))
        return concat(found)


@dataclass(frozen=True)
class _Block:
    """Neighbouring samples, every array of them compressed on its own."""

    columns: Mapping[str, tuple[bytes, str, tuple[int, ...]]]
    offsets: Mapping[str, NDArray[np.int64]]


class Compressed:
    """Samples in memory, compressed by blosc2; blocks are decompressed side by side in threads."""

    def __init__(self, disk: Disk, own: Numbers | None, block: int) -> None:
        import blosc2

        self._blosc, self._block, self._length = blosc2, block, len(disk)
        numbers = np.arange(len(disk), dtype=np.int64) if own is None else own
        self._schema = disk.run(0, 1).slice(0, 0)
        self._sets = item_sets(self._schema)
        self._pool = ThreadPoolExecutor(max(1, blosc2.nthreads), thread_name_prefix="decompress")
        self._blocks: dict[int, _Block] = {}
        for number in np.unique(numbers // block).tolist():
            self._blocks[number] = self._pack(disk.run(number * block, min((number + 1) * block, len(disk))))
        self.facts = {"bytes": 0.0, "raw_bytes": 0.0, "read_bytes": 0.0, "read_seconds": 0.0}
        for each in self._blocks.values():
            self.facts["bytes"] += sum(len(data) for data, _, _ in each.columns.values())
            self.facts["raw_bytes"] += sum(
                np.dtype(kind).itemsize * int(np.prod(shape)) for _, kind, shape in each.columns.values()
            )

    def __len__(self) -> int:
        return self._length

    def read(self, numbers: Numbers) -> Table:
        begun = time.perf_counter()
        wanted = np.unique(numbers // self._block)
        tables = list(self._pool.map(self._unpack, wanted.tolist()))
        whole = concat(tables)
        self.facts["read_bytes"] += whole.nbytes
        self.facts["read_seconds"] += time.perf_counter() - begun
        starts = offsets_of([len(table) for table in tables])
        block = np.searchsorted(wanted, numbers // self._block)
        return whole.take(starts[block] + numbers % self._block)

    def _pack(self, table: Table) -> _Block:
        columns = {}
        for name, column in table.items():
            values = np.ascontiguousarray(column.values if isinstance(column, Ragged) else column)
            packed = self._blosc.compress2(values, typesize=values.dtype.itemsize, nthreads=1)
            columns[name] = (packed, values.dtype.str, values.shape)
        offsets = {items: table.ragged(items).offsets for items in set(self._sets.values())}
        return _Block(columns, offsets)

    def _unpack(self, number: int) -> Table:
        block = self._blocks[number]
        columns: dict[str, Any] = {}
        for name, (packed, kind, shape) in block.columns.items():
            values = np.empty(shape, np.dtype(kind))
            if values.nbytes:
                self._blosc.decompress2(packed, dst=values, nthreads=1)
            items = self._sets.get(name)
            columns[name] = values if items is None else Ragged(values, block.offsets[items])
        return Table(columns, units=self._schema.units, index_of=self._schema.index_of)


def _runs(order: Numbers) -> list[tuple[int, int]]:
    """First and last of each run of neighbours in sorted numbers."""
    breaks = np.flatnonzero(np.diff(order) > 1)
    firsts = order[np.concatenate([[0], breaks + 1])]
    return list(zip(firsts.tolist(), order[np.concatenate([breaks, [len(order) - 1]])].tolist(), strict=True))
