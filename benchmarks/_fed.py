"""End to end: batches from compressed memory, decompressed by threads, sent and scattered while the device works."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import blosc2
import numpy as np
import torch
from _contest import Sheet, seconds
from _lartpc import Pixels

from clew.recipes.lartpc.network import ParticleNet


def packed(pixels: Pixels) -> list[tuple[bytes, bytes]]:
    """Every event, compressed."""
    index, charge, offsets = (each.numpy() for each in pixels)
    cuts = itertools.pairwise(offsets.tolist())
    return [(blosc2.compress2(index[a:b]), blosc2.compress2(charge[a:b])) for a, b in cuts]


class Feed:
    """Two sets of buffers of fixed size; one is filled while the other is learned from."""

    def __init__(self, events: list[tuple[bytes, bytes]], batch: int, room: int) -> None:
        self.events, self.batch = events, batch
        self.host = [self._buffers(room, "cpu") for _ in range(2)]
        self.device = self._buffers(room, "cuda")
        self.pool = ThreadPoolExecutor(8)

    def _buffers(self, room: int, place: str) -> tuple[Any, ...]:
        kinds = ((room, torch.int32), (room, torch.float32), (self.batch + 1, torch.int64))
        made = [torch.zeros(size, dtype=kind, device=place) for size, kind in kinds]
        return tuple(each.pin_memory() for each in made) if place == "cpu" else tuple(made)

    def fill(self, turn: int) -> int:
        """Decompress a batch into the host's buffers of this turn."""
        index, charge, offsets = self.host[turn % 2]
        chosen = [self.events[(turn * self.batch + k) % len(self.events)] for k in range(self.batch)]
        raw = list(self.pool.map(lambda each: (blosc2.decompress2(each[0]), blosc2.decompress2(each[1])), chosen))
        ends = np.cumsum([0, *(len(each[0]) // 4 for each in raw)])
        offsets.copy_(torch.from_numpy(ends))
        for (places, charges), begin, end in zip(raw, ends[:-1], ends[1:], strict=True):
            index[begin:end] = torch.frombuffer(bytearray(places), dtype=torch.int32)
            charge[begin:end] = torch.frombuffer(bytearray(charges), dtype=torch.float32)
        return turn

    def send(self, turn: int) -> None:
        """Put a filled set where the device learns from."""
        for to, source in zip(self.device, self.host[turn % 2], strict=True):
            to.copy_(source, non_blocking=True)


def fed(sheet: Sheet, pixels: Pixels, side: int, *, batch: int, steps: int, learner: Any, captured: Any) -> None:
    """The rate from compressed memory against that with the batch in place."""
    events = packed(pixels)
    most = int(pixels[2].diff().max())
    feed, label = Feed(events, batch, most * batch), torch.arange(batch, device="cuda") % 5
    network = ParticleNet(side, side).cuda()
    feed.send(feed.fill(0))
    learn: Callable[[], None] = captured(learner(network, lambda: network(*feed.device), label))

    def still() -> None:
        for _ in range(steps):
            learn()
        torch.cuda.synchronize()

    def moving() -> None:
        with ThreadPoolExecutor(1) as ahead:
            coming = ahead.submit(feed.fill, 0)
            for turn in range(steps):
                feed.send(coming.result())
                sent = torch.cuda.Event()  # type: ignore[no-untyped-call]
                sent.record()
                sent.synchronize()
                coming = ahead.submit(feed.fill, turn + 1)
                learn()
            coming.result()
        torch.cuda.synchronize()

    still()
    moving()
    rates = [batch * steps / min(seconds(each) for _ in range(3)) for each in (still, moving)]
    raw = pixels[0].numel() * 8 / sum(len(a) + len(b) for a, b in events)
    sheet.state(f"fed, batch {batch}: from compressed memory", rates[1], "images/s")
    sheet.state("fed: compression of lists of pixels", raw, "times")
    sheet.bar(f"fed, batch {batch}: of the rate with the batch in place", rates[1] / rates[0], 0.9, "")
