"""Where the samples are during training: in memory, compressed in memory, or on disk."""

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

from clew.data.dataset.decompression import DecompressionTasks, StoredArray, decompression_tasks, make_decompressor
from clew.data.dataset.manifest import Dataset
from clew.data.table import Ragged, Table, concat
from clew.data.table.hdf5 import item_sets
from clew.data.table.ragged import offsets_of

Numbers = NDArray[np.int64]
SampleStorage = Literal["memory", "compressed", "disk"]
ArrayFactory = Callable[[tuple[int, ...], Any], NDArray[Any]]
"""Returns an empty array of a shape and a dtype."""
CHUNK_BYTES, _PROBE_SAMPLES = 1 << 16, 64
"""Bytes of samples that are compressed together, and the number of samples from which the size of a sample is
estimated."""
_MIN_BYTES = 256
"""Values with fewer bytes are not compressed."""
_BYTES_PER_THREAD = 4 << 20
"""Bytes for which another thread is used."""
_MAX_RATIO = 0.8
"""Values are kept compressed only if the compressed size is below this share: others are copied 5 times as fast."""


class SampleStore(Protocol):
    """The samples of a split, by number. Only one thread at a time may call `read`; it need not be the main thread."""

    facts: dict[str, float]
    """Numbers for the records: bytes in memory, compression ratio, seconds and bytes of decompression so far."""

    def __len__(self) -> int:
        """Return the number of all samples of the split, also of those that are not stored here."""

    @property
    def reads_single_samples(self) -> bool:
        """Whether single samples are read as fast as neighbouring ones. Batches can then be read one by one."""

    def read(self, numbers: Numbers, empty: ArrayFactory = np.empty) -> Table:
        """Return samples in this order.

        Args:
            numbers: The sample numbers.
            empty: Makes the arrays of the result, if single samples are read.
        """


def open_store(
    dataset: Dataset,
    split: str,
    *,
    keep: SampleStorage,
    columns: Sequence[str] | None,
    numbers: Numbers | None = None,
    block: int,
) -> SampleStore:
    """Open the samples of a split.

    Args:
        dataset: The dataset.
        split: Name of the split.
        keep: Where the samples are kept: `memory`, `compressed` or `disk`.
        columns: The columns to read. None reads all.
        numbers: The sample numbers that will be read, sorted. Others are not stored. None means all.
        block: Number of neighbouring samples that are read together.
    """
    if keep == "memory":
        return MemorySamples(dataset.read(split, columns=columns))
    disk = DiskSamples(dataset, split, columns)
    return disk if keep == "disk" else CompressedSamples(disk, numbers, block)


class MemorySamples:
    """The samples as a table in memory."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.facts = {"bytes": float(table.nbytes)}

    def __len__(self) -> int:
        return len(self.table)

    @property
    def reads_single_samples(self) -> bool:
        return False

    def read(self, numbers: Numbers, empty: ArrayFactory = np.empty) -> Table:
        return self.table.take(numbers)


class DiskSamples:
    """The samples in shards on disk. Neighbouring samples are read in one operation."""

    def __init__(self, dataset: Dataset, split: str, columns: Sequence[str] | None) -> None:
        self._dataset, self._split, self._columns = dataset, split, columns
        self._starts = np.cumsum([0, *(shard.events for shard in dataset.manifest.splits[split])]).tolist()
        self.facts = {"read_bytes": 0.0, "read_seconds": 0.0}

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def reads_single_samples(self) -> bool:
        return False

    def read(self, numbers: Numbers, empty: ArrayFactory = np.empty) -> Table:
        start = time.perf_counter()
        order = np.unique(numbers)
        tables = [self.read_range(int(first), int(last) + 1) for first, last in _runs(order)]
        table = concat(tables)
        self.facts["read_bytes"] += table.nbytes
        self.facts["read_seconds"] += time.perf_counter() - start
        return table.take(np.searchsorted(order, numbers))

    def read_range(self, start: int, stop: int) -> Table:
        """Return the samples from `start` to `stop`, from one or several shards."""
        first = bisect.bisect_right(self._starts, start) - 1
        tables = []
        for place in range(first, len(self._starts) - 1):
            begin, end = self._starts[place], self._starts[place + 1]
            if begin >= stop:
                break
            rows = (max(start, begin) - begin, min(stop, end) - begin)
            tables.append(self._dataset.rows(self._split, place, *rows, columns=self._columns))
        return concat(tables)


@dataclass(frozen=True)
class _Chunk:
    """Neighbouring samples: their number, the values of every column, and the items per sample for each set of
    items."""

    samples: int
    columns: Mapping[str, StoredArray]
    lengths: Mapping[str, NDArray[np.int64]]


class CompressedSamples:
    """The samples in memory, compressed with blosc2, and decompressed by several threads to the memory where they are
    needed.

    Small neighbouring samples share a chunk. Large samples have one chunk each, so that each can be read alone.
    """

    def __init__(self, disk: DiskSamples, numbers_to_hold: Numbers | None, block: int) -> None:
        import blosc2

        blosc2.set_releasegil(True)  # else threads take turns
        self._blosc, self._block, self._length = blosc2, block, len(disk)
        self._compression = {"codec": blosc2.Codec.LZ4, "clevel": 5, "nthreads": 1}  # 3 times as fast to read as zstd
        self._schema = disk.read_range(0, min(_PROBE_SAMPLES, len(disk)))
        self._size = max(1, min(block, round(CHUNK_BYTES * len(self._schema) / max(self._schema.nbytes, 1))))
        self._schema = self._schema.slice(0, 0)
        self._sets = item_sets(self._schema)
        self._threads = max(1, blosc2.nthreads - blosc2.nthreads // 8)  # the training and the sender need a core too
        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="decompress")
        self._decompressors = [make_decompressor() for _ in range(self._threads)]
        numbers = np.arange(len(disk), dtype=np.int64) if numbers_to_hold is None else numbers_to_hold
        self.facts = dict.fromkeys(("bytes", "raw_bytes", "pack_seconds", "read_bytes", "read_seconds"), 0.0)
        self._chunks: dict[int, _Chunk] = {}
        for number in np.unique(numbers // block).tolist():
            self._add(disk.read_range(number * block, min((number + 1) * block, len(disk))), number)

    def __len__(self) -> int:
        return self._length

    @property
    def reads_single_samples(self) -> bool:
        return self._size == 1

    def read(self, numbers: Numbers, empty: ArrayFactory = np.empty) -> Table:
        start = time.perf_counter()
        chunk_of = self._chunk_of(numbers)
        chunk_numbers = chunk_of if self.reads_single_samples else np.unique(chunk_of)
        chunks = [self._chunks[number] for number in chunk_numbers.tolist()]
        table = self._decompressed(chunks, empty if self.reads_single_samples else np.empty)
        self.facts["read_bytes"] += table.nbytes
        self.facts["read_seconds"] += time.perf_counter() - start
        if self.reads_single_samples:
            return table
        starts = offsets_of([chunk.samples for chunk in chunks])
        return table.take(starts[np.searchsorted(chunk_numbers, chunk_of)] + numbers % self._block % self._size)

    def _chunk_of(self, numbers: Numbers) -> Numbers:
        """Return the chunk of each sample. The samples of different blocks are in different chunks."""
        return numbers // self._block * -(-self._block // self._size) + numbers % self._block // self._size

    def _add(self, table: Table, block: int) -> None:
        start_time = time.perf_counter()
        pieces = [table.slice(start, start + self._size) for start in range(0, len(table), self._size)]
        first = block * -(-self._block // self._size)
        for number, chunk in enumerate(self._pool.map(self._pack, pieces), first):
            self._chunks[number] = chunk
            self.facts["bytes"] += sum(array.nbytes for array in chunk.columns.values())
        self.facts["raw_bytes"] += sum(_values(column).nbytes for column in table.values())
        self.facts["pack_seconds"] += time.perf_counter() - start_time

    def _pack(self, table: Table) -> _Chunk:
        columns: dict[str, StoredArray] = {}
        for name, column in table.items():
            values = np.ascontiguousarray(_values(column))
            packed = values.nbytes >= _MIN_BYTES and self._blosc.compress2(
                values, typesize=values.dtype.itemsize, **self._compression
            )
            if packed and len(packed) < _MAX_RATIO * values.nbytes:
                columns[name] = StoredArray.of(packed, compressed=True)
            else:
                columns[name] = StoredArray.of(values.copy(), compressed=False)
        return _Chunk(len(table), columns, {items: table.ragged(items).lengths for items in set(self._sets.values())})

    def _decompressed(self, chunks: Sequence[_Chunk], empty: ArrayFactory) -> Table:
        """Return the samples of some chunks, one after the other. All threads fill all columns."""
        offsets = {
            items: offsets_of(np.concatenate([chunk.lengths[items] for chunk in chunks]))
            for items in set(self._sets.values())
        }
        ends = offsets_of([chunk.samples for chunk in chunks])
        columns: dict[str, Any] = {}
        column_tasks: list[DecompressionTasks] = []
        for name, like in self._schema.items():
            items, kind = self._sets.get(name), _values(like)
            cuts = ends if items is None else offsets[items][ends]
            values = empty((int(cuts[-1]), *kind.shape[1:]), kind.dtype)
            places = cuts * (kind.dtype.itemsize * math.prod(kind.shape[1:]))
            target = values.ctypes.data + places[:-1]
            column_tasks.append(decompression_tasks([chunk.columns[name] for chunk in chunks], target, np.diff(places)))
            columns[name] = values if items is None else Ragged(values, offsets[items])
        jobs = DecompressionTasks(*(np.concatenate(arrays) for arrays in zip(*column_tasks, strict=True)))
        threads = min(self._threads, 1 + int(jobs.target_bytes.sum()) // _BYTES_PER_THREAD)
        shares = [jobs.share(place, threads) for place in range(threads)]
        list(self._pool.map(lambda unpack, share: unpack(share), self._decompressors, shares))
        return Table(columns, units=self._schema.units, index_of=self._schema.index_of)


def _values(column: Any) -> NDArray[Any]:
    return column.values if isinstance(column, Ragged) else column


def _runs(order: Numbers) -> list[tuple[int, int]]:
    """Return the first and last number of each run of neighbours in sorted numbers."""
    breaks = np.flatnonzero(np.diff(order) > 1)
    firsts = order[np.concatenate([[0], breaks + 1])]
    return list(zip(firsts.tolist(), order[np.concatenate([breaks, [len(order) - 1]])].tolist(), strict=True))
