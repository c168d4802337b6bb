"""Waking those who wait for something to happen: event streams, and agents that poll."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterator
from contextlib import contextmanager


class Hub:
    """Topics are words such as `run:17`. Any thread may tell; only the event loop's may listen."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ears: dict[str, set[asyncio.Event]] = defaultdict(set)
        self.stopping = False

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """The loop that listeners run in."""
        self._loop = loop

    def tell(self, topics: Collection[str]) -> None:
        """Wake everybody who listens to any of these."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake, list(topics))

    def stop(self) -> None:
        """Wake everybody for the last time: `stopping` is set."""
        self.stopping = True
        self.tell(list(self._ears))

    @contextmanager
    def listening(self, *topics: str) -> Iterator[asyncio.Event]:
        """An event that is set whenever one of the topics is told; whoever saw it clears it."""
        ear = asyncio.Event()
        for topic in topics:
            self._ears[topic].add(ear)
        try:
            yield ear
        finally:
            for topic in topics:
                self._ears[topic].discard(ear)
                if not self._ears[topic]:
                    del self._ears[topic]

    @property
    def listeners(self) -> int:
        """How many wait, over all topics."""
        return sum(map(len, self._ears.values()))

    def _wake(self, topics: list[str]) -> None:
        for topic in topics:
            for ear in self._ears.get(topic, ()):
                ear.set()


async def heard(ear: asyncio.Event, seconds: float) -> bool:
    """Wait for an event at most so long; whether it came. It is cleared."""
    try:
        await asyncio.wait_for(ear.wait(), seconds)
    except TimeoutError:
        return False
    ear.clear()
    return True
