"""Wakes coroutines that wait for something to happen: event streams, and agents that poll."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterator
from contextlib import contextmanager


class Notifications:
    """Notifications by topic, such as `run:17`. Any thread may notify; only the event loop's thread may subscribe."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._subscribers: dict[str, set[asyncio.Event]] = defaultdict(set)
        self.stopping = False
        """Whether the server is shutting down: waiting coroutines must return."""

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Set the event loop of the subscribers."""
        self._loop = loop

    def notify(self, topics: Collection[str]) -> None:
        """Wake all subscribers of any of these topics."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake, list(topics))

    def stop(self) -> None:
        """Set `stopping` and wake all subscribers for the last time."""
        self.stopping = True
        self.notify(list(self._subscribers))

    @contextmanager
    def subscribe(self, *topics: str) -> Iterator[asyncio.Event]:
        """Subscribe to topics; the event is set at each notification, and the subscriber clears it."""
        wakeup = asyncio.Event()
        for topic in topics:
            self._subscribers[topic].add(wakeup)
        try:
            yield wakeup
        finally:
            for topic in topics:
                self._subscribers[topic].discard(wakeup)
                if not self._subscribers[topic]:
                    del self._subscribers[topic]

    @property
    def subscriptions(self) -> int:
        """The number of subscriptions to all topics."""
        return sum(map(len, self._subscribers.values()))

    def _wake(self, topics: list[str]) -> None:
        for topic in topics:
            for wakeup in self._subscribers.get(topic, ()):
                wakeup.set()


async def wait_for_notification(wakeup: asyncio.Event, seconds: float) -> bool:
    """Wait for a notification and clear the event.

    Returns:
        False if none arrived within `seconds`.
    """
    try:
        await asyncio.wait_for(wakeup.wait(), seconds)
    except TimeoutError:
        return False
    wakeup.clear()
    return True
