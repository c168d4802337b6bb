"""Where samples are while a run trains: whole in memory, compressed in memory, or on disk."""

from __future__ import annotations

import bisect
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from clew.data.dataset.decompression import Jobs, Packed, jobs_of, unpacker
from clew.data.dataset.manifest import Dataset
from clew.data.table import Ragged, Table, concat
from clew.data.table.hdf5 import item_sets
from clew.data.table.ragged import offsets_of

Numbers = NDArray[np.int64]
Keep = Literal["memory", "compressed", "disk"]
Empty = Callable[[tuple[int, ...], Any], NDArray[Any]]
"""Makes an array of a shape and type to be filled."""
_CHUNK, _LOOK = 1 << 16, 64
"""Bytes of samples that are compressed together, and from how many it is told how large samples are."""
_FEW = 256
"""Bytes of values that are not worth compressing."""
_ENOUGH = 4 << 20
"""Bytes that a thread is woken for."""
_WORTH = 0.8
"""The share of their bytes that must be left for values to be kept compressed: others are copied 5 times as fast."""


class Store(Protocol):
    """Samples by number. `read` may be called from one thread at a time, which need not be the main one."""

    facts: dict[str, float]
    """What is worth telling: bytes held, compression ratio, seconds and bytes of decompression so far."""

    def __len__(self) -> int:
        """All samples of the split, held here or not."""

    @property
    def singly(self) -> bool:
        """Whether single samples are had as fast as neighbours: batches may then be read one by one."""

    def read(self, numbers: Numbers, empty: Empty = np.empty) -> Table:
        """These samples, in this order; where they are had singly, in arrays that `empty` makes."""


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

    @property
    def singly(self) -> bool:
        return False

    def read(self, numbers: Numbers, empty: Empty = np.empty) -> Table:
        return self.table.take(numbers)


class Disk:
    """Shards on disk; neighbouring samples are read in one go."""

    def __init__(self, dataset: Dataset, split: str, columns: Sequence[str] | None) -> None:
        self._dataset, self._split, self._columns = dataset, split, columns
        self._starts = np.cumsum([0, *(shard.events for shard in dataset.manifest.splits[split])]).tolist()
        self.facts = {"read_bytes": 0.0, "read_seconds": 0.0}

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def singly(self) -> bool:
        return False

    def read(self, numbers: Numbers, empty: Empty = np.empty) -> Table:
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
class _Chunk:
    """Neighbouring samples: their number, the values of every column, and the items of each sample by set of items."""

    samples: int
    columns: Mapping[str, Packed]
    lengths: Mapping[str, NDArray[np.int64]]


class Compressed:
    """Samples in memory, compressed by blosc2 in threads, and decompressed side by side to where they are wanted.

    Neighbours share a chunk where samples are small; large ones have one each, so that any can be had alone.
    """

    def __init__(self, disk: Disk, own: Numbers | None, block: int) -> None:
        import blosc2

        blosc2.set_releasegil(True)  # else threads take turns
        self._blosc, self._block, self._length = blosc2, block, len(disk)
        self._how = {"codec": blosc2.Codec.LZ4, "clevel": 5, "nthreads": 1}  # 3 times as fast to read as zstd
        self._schema = disk.run(0, min(_LOOK, len(disk)))
        self._size = max(1, min(block, round(_CHUNK * len(self._schema) / max(self._schema.nbytes, 1))))
        self._schema = self._schema.slice(0, 0)
        self._sets = item_sets(self._schema)
        self._threads = max(1, blosc2.nthreads - blosc2.nthreads // 8)  # who trains and who sends want a core too
        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="decompress")
        self._unpackers = [unpacker() for _ in range(self._threads)]
        numbers = np.arange(len(disk), dtype=np.int64) if own is None else own
        self.facts = dict.fromkeys(("bytes", "raw_bytes", "pack_seconds", "read_bytes", "read_seconds"), 0.0)
        self._chunks: dict[int, _Chunk] = {}
        for number in np.unique(numbers // block).tolist():
            self._add(disk.run(number * block, min((number + 1) * block, len(disk))), number)

    def __len__(self) -> int:
        return self._length

    @property
    def singly(self) -> bool:
        return self._size == 1

    def read(self, numbers: Numbers, empty: Empty = np.empty) -> Table:
        begun = time.perf_counter()
        numbered = self._chunk_of(numbers)
        wanted = numbered if self.singly else np.unique(numbered)
        chunks = [self._chunks[number] for number in wanted.tolist()]
        whole = self._unpacked(chunks, empty if self.singly else np.empty)
        self.facts["read_bytes"] += whole.nbytes
        self.facts["read_seconds"] += time.perf_counter() - begun
        if self.singly:
            return whole
        starts = offsets_of([chunk.samples for chunk in chunks])
        return whole.take(starts[np.searchsorted(wanted, numbered)] + numbers % self._block % self._size)

    def _chunk_of(self, numbers: Numbers) -> Numbers:
        """In which chunk samples are; those of a block share none with another."""
        return numbers // self._block * -(-self._block // self._size) + numbers % self._block // self._size

    def _add(self, table: Table, block: int) -> None:
        begun = time.perf_counter()
        pieces = [table.slice(start, start + self._size) for start in range(0, len(table), self._size)]
        first = block * -(-self._block // self._size)
        for number, chunk in enumerate(self._pool.map(self._pack, pieces), first):
            self._chunks[number] = chunk
            self.facts["bytes"] += sum(each.nbytes for each in chunk.columns.values())
        self.facts["raw_bytes"] += sum(_values(column).nbytes for column in table.values())
        self.facts["pack_seconds"] += time.perf_counter() - begun

    def _pack(self, table: Table) -> _Chunk:
        columns: dict[str, Packed] = {}
        for name, column in table.items():
            values = np.ascontiguousarray(_values(column))
            packed = values.nbytes >= _FEW and self._blosc.compress2(
                values, typesize=values.dtype.itemsize, **self._how
            )
            if packed and len(packed) < _WORTH * values.nbytes:
                columns[name] = Packed.of(packed, compressed=True)
            else:
                columns[name] = Packed.of(values.copy(), compressed=False)
        return _Chunk(len(table), columns, {items: table.ragged(items).lengths for items in set(self._sets.values())})

    def _unpacked(self, chunks: Sequence[_Chunk], empty: Empty) -> Table:
        """The samples of chunks one after the other, all columns filled by all threads."""
        offsets = {
            items: offsets_of(np.concatenate([chunk.lengths[items] for chunk in chunks]))
            for items in set(self._sets.values())
        }
        ends = offsets_of([chunk.samples for chunk in chunks])
        columns: dict[str, Any] = {}
        found: list[Jobs] = []
        for name, like in self._schema.items():
            items, kind = self._sets.get(name), _values(like)
            cuts = ends if items is None else offsets[items][ends]
            values = empty((int(cuts[-1]), *kind.shape[1:]), kind.dtype)
            places = cuts * (kind.dtype.itemsize * math.prod(kind.shape[1:]))
            target = values.ctypes.data + places[:-1]
            found.append(jobs_of([chunk.columns[name] for chunk in chunks], target, np.diff(places)))
            columns[name] = values if items is None else Ragged(values, offsets[items])
        jobs = Jobs(*(np.concatenate(each) for each in zip(*found, strict=True)))
        threads = min(self._threads, 1 + int(jobs.wanted.sum()) // _ENOUGH)
        shares = [jobs.share(place, threads) for place in range(threads)]
        list(self._pool.map(lambda unpack, own: unpack(own), self._unpackers, shares))
        return Table(columns, units=self._schema.units, index_of=self._schema.index_of)


def _values(column: Any) -> NDArray[Any]:
    return column.values if isinstance(column, Ragged) else column


def _runs(order: Numbers) -> list[tuple[int, int]]:
    """First and last of each run of neighbours in sorted numbers."""
    breaks = np.flatnonzero(np.diff(order) > 1)
    firsts = order[np.concatenate([[0], breaks + 1])]
    return list(zip(firsts.tolist(), order[np.concatenate([breaks, [len(order) - 1]])].tolist(), strict=True))
