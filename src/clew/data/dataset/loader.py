"""The loader: batches on the device, prepared before the training step needs them."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from clew.data.dataset.batch import Batch, to_batch
from clew.data.dataset.batch_builder import BatchBuilder
from clew.data.dataset.sample_store import MemorySamples, SampleStore
from clew.data.dataset.sampler import Sampler
from clew.data.table import Table

Item = TypeVar("Item")
Numbers = NDArray[np.int64]
_GROUP_BYTES, _MAX_GROUP = 1 << 20, 64
"""Bytes, and largest number, of batches that are gathered in one call."""


class BatchShare(NamedTuple):
    """The work of one rank in one step: its share of a batch, in parts that are computed one after the other."""

    parts: list[Batch]
    numbers: Numbers
    """The sample numbers of this rank."""
    size: int
    """Number of samples of the whole batch, over all ranks."""


@dataclass
class Loader:
    """Yields the shares of a rank for each batch of an epoch, in the order of the sampler.

    If the samples are streamed, they are read one window at a time in a background thread. Another thread prepares
    `ahead` batches.

    Args:
        store: The samples.
        sampler: Selects the samples of each batch.
        columns: The columns to use, as in `Recipe.columns`. None uses all.
        device: Device of the batches.
        parts: Number of parts of each share (gradient accumulation).
        ahead: Number of batches that are prepared in advance. 0 prepares them when they are needed, which is best for
            small samples in memory.
    """

    store: SampleStore
    sampler: Sampler
    columns: Sequence[str] | None
    device: torch.device
    parts: int = 1
    ahead: int = 0
    prefetch_next_epoch: bool = False
    """Whether the first batches of the next epoch are prepared at the end of an epoch. `close` ends that."""
    capacity: Callable[[Batch], Mapping[str, int] | None] | None = None
    """Returns the capacity of a recorded step for a batch. It is called before the batch is sent to CUDA."""
    waited: float = field(default=0.0, init=False)
    """Seconds for which `epoch` has kept its caller waiting so far."""
    _next: tuple[int, Generator[BatchShare, None, None]] | None = field(default=None, init=False)
    _listed_epoch: tuple[int, list[Numbers]] = field(default=(-1, []), init=False)
    """The batches of an epoch, stored because an epoch that is trained in pieces asks for them many times."""
    _stream: torch.cuda.Stream | None = field(default=None, init=False)
    """The CUDA stream on which batches are sent."""
    on_wait: Callable[[int, int], None] | None = field(default=None, init=False)
    """Called in the caller's thread with the start and end (`perf_counter_ns`) of each wait."""
    on_read: Callable[[int, int], None] | None = field(default=None, init=False)
    """Called in the reading thread with the start and end of reading and decompressing a window."""

    def epoch(self, epoch: int, start: int = 0, stop: int | None = None) -> Generator[BatchShare, None, None]:
        """Yield the shares of an epoch.

        Args:
            epoch: Number of the epoch.
            start: Number of the first batch.
            stop: End of the range of batches. None continues to the last one.
        """
        shares = self._started_shares(epoch, start, stop)
        finished = False
        try:
            while True:
                start_ns = time.perf_counter_ns()
                share = next(shares, None)
                stop_ns = time.perf_counter_ns()
                self.waited += (stop_ns - start_ns) / 1e9
                if self.on_wait is not None:
                    self.on_wait(start_ns, stop_ns)
                if share is None:
                    finished = True
                    break
                yield share
        finally:
            shares.close()
        if finished and self.prefetch_next_epoch and self.ahead and stop is None:
            self._next = (epoch + 1, self._start(epoch + 1, 0, None))

    def close(self) -> None:
        """End the background threads."""
        if self._next is not None:
            self._next[1].close()
            self._next = None

    def _started_shares(self, epoch: int, start: int, stop: int | None) -> Generator[BatchShare, None, None]:
        """Return the shares that were started at the end of the previous epoch, if they are the requested ones."""
        prefetched, self._next = self._next, None
        if prefetched is not None and prefetched[0] == epoch and start == 0 and stop is None:
            return prefetched[1]
        if prefetched is not None:
            prefetched[1].close()
        return self._start(epoch, start, stop)

    def _start(self, epoch: int, start: int, stop: int | None) -> Generator[BatchShare, None, None]:
        shares = self._generate(epoch, start, stop)
        return prefetch(shares, self.ahead) if self.ahead else shares

    def _generate(self, epoch: int, start: int, stop: int | None) -> Generator[BatchShare, None, None]:
        if not self.sampler.streamed:
            return self._from_memory(epoch, start, stop)
        return (
            self._from_single_reads(epoch, start, stop)
            if self.store.reads_single_samples
            else self._from_windows(epoch, start, stop)
        )

    def _from_memory(self, epoch: int, start: int, stop: int | None) -> Generator[BatchShare, None, None]:
        assert isinstance(self.store, MemorySamples)
        batches = BatchBuilder(self.store.table, self.columns)
        simple = self.parts == 1 and self.device.type == "cpu"
        remaining = self._epoch_batches(epoch)[start:stop]
        group_size = _group_size(batches.event_bytes * self.sampler.batch_size / self.sampler.ranks) if simple else 1
        for first in range(0, len(remaining), group_size):
            group = remaining[first : first + group_size]
            shares = [self.sampler.share(batch) for batch in group]
            if simple and all(map(len, shares)):
                for batch, numbers, built in zip(group, shares, batches.batches(shares), strict=True):
                    yield BatchShare([built], numbers, len(batch))
            else:
                yield from (
                    self._share(batches, numbers, numbers, len(b)) for b, numbers in zip(group, shares, strict=True)
                )

    def _epoch_batches(self, epoch: int) -> list[Numbers]:
        if self._listed_epoch[0] != epoch:
            self._listed_epoch = (epoch, self.sampler.batches(epoch))
        return self._listed_epoch[1]

    def _from_single_reads(self, epoch: int, start: int, stop: int | None) -> Generator[BatchShare, None, None]:
        """Read batch by batch, directly into the memory from which the batch is used or sent."""
        read = prefetch(self._batches(epoch, start, stop), 1)
        try:
            for tables, share, size in read:
                parts = [self._on_device(to_batch(table, self.columns, copy=False)) for table in tables]
                for part, numbers in zip(parts, np.array_split(share, self.parts), strict=True):
                    part.counts = len(numbers) > 0
                yield BatchShare(parts, share, size)
        finally:
            read.close()

    def _batches(
        self, epoch: int, start: int, stop: int | None
    ) -> Generator[tuple[list[Table], Numbers, int], None, None]:
        """Yield the samples of this rank for each batch, in parts; their numbers; and the size of the whole batch."""
        empty = partial(_empty, pinned=self.device.type == "cuda")
        for batch in self._epoch_batches(epoch)[start:stop]:
            share = self.sampler.share(batch)
            start_ns = time.perf_counter_ns()
            pieces = np.array_split(share, self.parts)
            tables = [self.store.read(piece if len(piece) else self._placeholder_samples, empty) for piece in pieces]
            if self.on_read is not None:
                self.on_read(start_ns, time.perf_counter_ns())
            yield tables, share, len(batch)

    def _from_windows(self, epoch: int, start: int, stop: int | None) -> Generator[BatchShare, None, None]:
        windows = prefetch(self._windows(epoch, start, stop), 1)
        try:
            for table, window_numbers, batches in windows:
                builder = BatchBuilder(table, self.columns)
                for batch in batches:
                    share = self.sampler.share(batch)
                    yield self._share(builder, np.searchsorted(window_numbers, share), share, len(batch))
        finally:
            windows.close()

    def _windows(
        self, epoch: int, start: int, stop: int | None
    ) -> Generator[tuple[Table, Numbers, list[Numbers]], None, None]:
        """Yield the samples of this rank for each window; their numbers (sorted); and the batches of the window."""
        before = 0
        for batches in self.sampler.windows(epoch):
            end = None if stop is None else max(0, stop - before)
            selected = batches[max(0, start - before) : end]
            before += len(batches)
            if selected:
                window_numbers = np.unique(
                    np.concatenate([self._placeholder_samples, *map(self.sampler.share, selected)])
                )
                start_ns = time.perf_counter_ns()
                table = self.store.read(window_numbers)
                if self.on_read is not None:
                    self.on_read(start_ns, time.perf_counter_ns())
                yield table, window_numbers, selected

    @property
    def _placeholder_samples(self) -> Numbers:
        """Samples for a rank whose share is empty, so that it makes the same calls as the other ranks.

        If ranks share batches by cost, the cheapest one: a share is empty only if the others have one sample each.
        """
        if self.sampler.costs is not None:
            return np.array([np.argmin(self.sampler.costs)], dtype=np.int64)
        return np.arange(min(2, len(self.store)), dtype=np.int64)

    def _share(self, batches: BatchBuilder, places: Numbers, numbers: Numbers, size: int) -> BatchShare:
        if self.parts == 1:
            return BatchShare([self._batch(batches, places)], numbers, size)
        return BatchShare([self._batch(batches, piece) for piece in np.array_split(places, self.parts)], numbers, size)

    def _batch(self, batches: BatchBuilder, places: Numbers) -> Batch:
        counts = len(places) > 0
        batch = batches.take(places if counts else self._placeholder_samples)
        batch.counts = counts
        return self._on_device(batch)

    def _on_device(self, batch: Batch) -> Batch:
        """Return the batch on the device. On CUDA it is copied while other work runs there, and is complete on
        return."""
        if self.device.type != "cuda":
            return batch if self.device.type == "cpu" else batch.pin().to(self.device)
        if self._stream is None:
            self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        if self.capacity is not None:
            batch.capacity = self.capacity(batch)
        with torch.cuda.stream(self._stream):
            sent = batch.pin().to(self.device)
        self._stream.synchronize()
        sent.record_stream(torch.cuda.default_stream(self.device))
        return sent


def _group_size(size: float) -> int:
    """Return how many batches of a size (in bytes) to gather in one call: enough to share the cost of a call, but few
    enough to stay in the CPU cache until they are used."""
    return int(min(max(_GROUP_BYTES // max(size, 1), 1), _MAX_GROUP))


def _empty(shape: tuple[int, ...], kind: Any, *, pinned: bool) -> NDArray[Any]:
    """Return an array in memory of torch, which is aligned. A GPU can copy from `pinned` memory by itself."""
    dtype = torch.from_numpy(np.empty(0, kind)).dtype
    return np.asarray(torch.empty(shape, dtype=dtype, pin_memory=pinned).numpy())


def prefetch(items: Generator[Item, None, None], depth: int) -> Generator[Item, None, None]:
    """Yield the same items, produced in a background thread that starts now and is at most `depth` items ahead.

    An error in the thread is raised where items are taken. Closing the generator ends the thread.

    Example:
        >>> list(prefetch((n * n for n in range(4)), depth=2))
        [0, 1, 4, 9]
    """
    ready: queue.Queue[tuple[str, object]] = queue.Queue(depth)
    stop = threading.Event()

    def put(kind: str, item: object) -> bool:
        while not stop.is_set():
            try:
                ready.put((kind, item), timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def work() -> None:
        try:
            for item in items:
                if not put("item", item):
                    break
            put("end", None)
        except BaseException as error:
            put("error", error)
        finally:
            items.close()

    thread = threading.Thread(target=work, name="loader", daemon=True)
    thread.start()
    consumer = _consume(ready, stop, thread)
    next(consumer)
    return consumer  # type: ignore[return-value]


def _consume(
    ready: queue.Queue[tuple[str, object]], stop: threading.Event, thread: threading.Thread
) -> Generator[object, None, None]:
    """Yield the items to the caller. The first one is None: it ensures that closing the generator ends the thread, even
    if
    no item was taken."""
    try:
        yield None
        while True:
            kind, item = ready.get()
            if kind == "end":
                return
            if kind == "error":
                assert isinstance(item, BaseException)
                raise item
            yield item
    finally:
        stop.set()
        thread.join()
