"""Batches on the device, made ready ahead of the step that needs them."""

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

from clew.data.dataset.batch import Batch, Batches, to_batch
from clew.data.dataset.sample_store import Memory, Store
from clew.data.dataset.sampler import Sampler
from clew.data.table import Table

Item = TypeVar("Item")
Numbers = NDArray[np.int64]
_NEAR, _MOST = 1 << 20, 64
"""Bytes and number of batches that are gathered at once."""


class Portion(NamedTuple):
    """What one rank works on in one step: its share of a batch, in parts that are computed one after the other."""

    parts: list[Batch]
    numbers: Numbers
    """The samples of this rank."""
    size: int
    """Samples of the whole batch, over all ranks."""


@dataclass
class Loader:
    """Portions of an epoch, in the sampler's order.

    A store that is streamed is read a window at a time in a thread; `ahead` batches are made ready in another
    (0: when they are asked for, which is best for small samples in memory).
    """

    store: Store
    sampler: Sampler
    columns: Sequence[str] | None
    device: torch.device
    parts: int = 1
    ahead: int = 0
    goes_on: bool = False
    """Whether the first batches of the next epoch are made ready behind the one before; `close` ends that."""
    room: Callable[[Batch], Mapping[str, int] | None] | None = None
    """Says of a batch, before it is sent to CUDA, what room a recorded step of it needs."""
    waited: float = field(default=0.0, init=False)
    """Seconds that `epoch` kept its caller waiting so far."""
    _next: tuple[int, Generator[Portion, None, None]] | None = field(default=None, init=False)
    _listed: tuple[int, list[Numbers]] = field(default=(-1, []), init=False)
    """The batches of an epoch: asked for again and again where it is dealt out in pieces."""
    _stream: torch.cuda.Stream | None = field(default=None, init=False)
    """On which batches are sent to CUDA."""
    on_wait: Callable[[int, int], None] | None = field(default=None, init=False)
    """Told, in the caller's thread, between which `perf_counter_ns` it was kept waiting."""
    on_read: Callable[[int, int], None] | None = field(default=None, init=False)
    """Told, in the thread that reads, between which a window was read and decompressed."""

    def epoch(self, epoch: int, start: int = 0, stop: int | None = None) -> Generator[Portion, None, None]:
        """The portions of an epoch from batch `start` on (to `stop`)."""
        portions = self._portions(epoch, start, stop)
        whole = False
        try:
            while True:
                begun = time.perf_counter_ns()
                portion = next(portions, None)
                ended = time.perf_counter_ns()
                self.waited += (ended - begun) / 1e9
                if self.on_wait is not None:
                    self.on_wait(begun, ended)
                if portion is None:
                    whole = True
                    break
                yield portion
        finally:
            portions.close()
        if whole and self.goes_on and self.ahead and stop is None:
            self._next = (epoch + 1, self._begun(epoch + 1, 0, None))

    def close(self) -> None:
        """End the threads."""
        if self._next is not None:
            self._next[1].close()
            self._next = None

    def _portions(self, epoch: int, start: int, stop: int | None) -> Generator[Portion, None, None]:
        """Those begun already behind the epoch before, where they are what is asked for."""
        early, self._next = self._next, None
        if early is not None and early[0] == epoch and start == 0 and stop is None:
            return early[1]
        if early is not None:
            early[1].close()
        return self._begun(epoch, start, stop)

    def _begun(self, epoch: int, start: int, stop: int | None) -> Generator[Portion, None, None]:
        made = self._made(epoch, start, stop)
        return ahead_of(made, self.ahead) if self.ahead else made

    def _made(self, epoch: int, start: int, stop: int | None) -> Generator[Portion, None, None]:
        if not self.sampler.streamed:
            return self._plain(epoch, start, stop)
        return self._single(epoch, start, stop) if self.store.singly else self._windowed(epoch, start, stop)

    def _plain(self, epoch: int, start: int, stop: int | None) -> Generator[Portion, None, None]:
        assert isinstance(self.store, Memory)
        batches = Batches(self.store.table, self.columns)
        simple = self.parts == 1 and self.device.type == "cpu"
        todo = self._list(epoch)[start:stop]
        several = _several(batches.event_bytes * self.sampler.batch_size / self.sampler.ranks) if simple else 1
        for first in range(0, len(todo), several):
            near = todo[first : first + several]
            shares = [self.sampler.share(batch) for batch in near]
            if simple and all(map(len, shares)):
                for batch, own, made in zip(near, shares, batches.each(shares), strict=True):
                    yield Portion([made], own, len(batch))
            else:
                yield from (self._portion(batches, own, own, len(b)) for b, own in zip(near, shares, strict=True))

    def _list(self, epoch: int) -> list[Numbers]:
        if self._listed[0] != epoch:
            self._listed = (epoch, self.sampler.batches(epoch))
        return self._listed[1]

    def _single(self, epoch: int, start: int, stop: int | None) -> Generator[Portion, None, None]:
        """Batch by batch, each straight into the memory that it is learned or sent from."""
        read = ahead_of(self._batches(epoch, start, stop), 1)
        try:
            for tables, own, size in read:
                parts = [self._sent(to_batch(table, self.columns, copy=False)) for table in tables]
                for part, numbers in zip(parts, np.array_split(own, self.parts), strict=True):
                    part.counts = len(numbers) > 0
                yield Portion(parts, own, size)
        finally:
            read.close()

    def _batches(
        self, epoch: int, start: int, stop: int | None
    ) -> Generator[tuple[list[Table], Numbers, int], None, None]:
        """This rank's samples of each batch, in parts; their numbers, and the size of the whole batch."""
        empty = partial(_empty, pinned=self.device.type == "cuda")
        for batch in self._list(epoch)[start:stop]:
            own = self.sampler.share(batch)
            begun = time.perf_counter_ns()
            pieces = np.array_split(own, self.parts)
            tables = [self.store.read(piece if len(piece) else self._borrowed, empty) for piece in pieces]
            if self.on_read is not None:
                self.on_read(begun, time.perf_counter_ns())
            yield tables, own, len(batch)

    def _windowed(self, epoch: int, start: int, stop: int | None) -> Generator[Portion, None, None]:
        windows = ahead_of(self._windows(epoch, start, stop), 1)
        try:
            for table, held, batches in windows:
                near = Batches(table, self.columns)
                for batch in batches:
                    own = self.sampler.share(batch)
                    yield self._portion(near, np.searchsorted(held, own), own, len(batch))
        finally:
            windows.close()

    def _windows(
        self, epoch: int, start: int, stop: int | None
    ) -> Generator[tuple[Table, Numbers, list[Numbers]], None, None]:
        """This rank's samples of each window, their numbers (sorted), and the window's batches."""
        before = 0
        for batches in self.sampler.windows(epoch):
            end = None if stop is None else max(0, stop - before)
            wanted = batches[max(0, start - before) : end]
            before += len(batches)
            if wanted:
                held = np.unique(np.concatenate([self._borrowed, *map(self.sampler.share, wanted)]))
                begun = time.perf_counter_ns()
                table = self.store.read(held)
                if self.on_read is not None:
                    self.on_read(begun, time.perf_counter_ns())
                yield table, held, wanted

    @property
    def _borrowed(self) -> Numbers:
        """Samples for a rank whose share is empty, so that it makes the same calls as the others."""
        return np.arange(min(2, len(self.store)), dtype=np.int64)

    def _portion(self, batches: Batches, places: Numbers, numbers: Numbers, size: int) -> Portion:
        if self.parts == 1:
            return Portion([self._batch(batches, places)], numbers, size)
        return Portion([self._batch(batches, piece) for piece in np.array_split(places, self.parts)], numbers, size)

    def _batch(self, batches: Batches, places: Numbers) -> Batch:
        counts = len(places) > 0
        batch = batches.take(places if counts else self._borrowed)
        batch.counts = counts
        return self._sent(batch)

    def _sent(self, batch: Batch) -> Batch:
        """The batch on the device; on CUDA it travels beside what is computed there, and is there on return."""
        if self.device.type != "cuda":
            return batch if self.device.type == "cpu" else batch.pin().to(self.device)
        if self._stream is None:
            self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        if self.room is not None:
            batch.room = self.room(batch)
        with torch.cuda.stream(self._stream):
            sent = batch.pin().to(self.device)
        self._stream.synchronize()
        sent.used_on(torch.cuda.default_stream(self.device))
        return sent


def _several(size: float) -> int:
    """How many batches of so many bytes to gather at once: enough to share the cost of a call, and to stay in the
    processor's cache until they are used."""
    return int(min(max(_NEAR // max(size, 1), 1), _MOST))


def _empty(shape: tuple[int, ...], kind: Any, *, pinned: bool) -> NDArray[Any]:
    """An array in torch's own memory, which is aligned; `pinned`: a device fetches from it by itself."""
    wanted = torch.from_numpy(np.empty(0, kind)).dtype
    return np.asarray(torch.empty(shape, dtype=wanted, pin_memory=pinned).numpy())


def ahead_of(items: Generator[Item, None, None], depth: int) -> Generator[Item, None, None]:
    """The same items, produced in a thread that begins now and is at most `depth` of them ahead.

    An error of the thread is raised where items are taken; closing the result ends it.
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
    taken = _taken(ready, stop, thread)
    next(taken)
    return taken  # type: ignore[return-value]


def _taken(
    ready: queue.Queue[tuple[str, object]], stop: threading.Event, thread: threading.Thread
) -> Generator[object, None, None]:
    """The caller's side. The first item is none: it makes sure that closing ends the thread, whatever was taken."""
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
