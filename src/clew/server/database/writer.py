"""The one thread that writes to the database. Requests submit work to it and wait for a shared commit.

Example:
    number = writer.submit(lambda transaction: transaction.add(groups, name="atlas", created=now)).result()
"""

from __future__ import annotations

import functools
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

import sqlalchemy as sa

from clew.server.database.backend import backend_of
from clew.server.problems import RequestError

_LOG = logging.getLogger("clew.server")
T = TypeVar("T")
_MAX_TASKS_PER_COMMIT = 500


class Transaction:
    """An open transaction. Work of several requests shares it: all of it is committed, or none."""

    def __init__(self, connection: sa.Connection) -> None:
        self.connection = connection
        self.execute = connection.execute
        self.scalar = connection.scalar
        self.topics: set[str] = set()
        """Topics whose subscribers are notified after the commit."""
        self.after_commit: list[Callable[[], None]] = []
        """Functions called after the commit."""
        self._delayed: dict[sa.Table, list[dict[str, Any]]] = {}

    def add(self, table: sa.Table, **row: Any) -> int:
        """Insert a row and return its `id`."""
        key = self.execute(_insert(table), row).inserted_primary_key
        assert key is not None
        return int(key[0])

    def add_if_absent(self, table: sa.Table, **row: Any) -> int | None:
        """Insert a row and return its `id`, or None if a row with the same unique columns exists."""
        number = self.scalar(backend_of(self.connection).insert_if_absent(table), row)
        return None if number is None else int(number)

    def add_later(self, table: sa.Table, **row: Any) -> None:
        """Insert a row at the end of the transaction, together with the others. All must have the same columns."""
        self._delayed.setdefault(table, []).append(row)

    def flush(self) -> None:
        """Insert the rows of `add_later`."""
        for table, rows in self._delayed.items():
            self.execute(_insert(table), rows)
        self._delayed.clear()

    def notify(self, *topics: str) -> None:
        """Notify the subscribers of these topics once the transaction is committed."""
        self.topics.update(topics)


@functools.cache
def _insert(table: sa.Table) -> sa.Insert:
    return table.insert()


GroupWork = Callable[[Transaction, Sequence[Any]], Sequence[Any]]
"""Does several pieces of work of one kind at once, and returns one result per piece."""


@dataclass
class _Task:
    work: GroupWork
    item: Any
    durable: bool
    future: Future[Any] = field(default_factory=Future)


def _run_each(transaction: Transaction, items: Sequence[Callable[[Transaction], Any]]) -> list[Any]:
    return [work(transaction) for work in items]


def _log_errors(call: Callable[[], None]) -> None:
    """Call a function after a commit. An error cannot undo the commit and must not end the thread."""
    try:
        call()
    except Exception:
        _LOG.exception("after a commit")


class DatabaseWriter:
    """Runs all waiting work in one transaction, commits, and then answers every request.

    Work may raise `RequestError` or any other error. The transaction is then rolled back, and each piece of work runs
    again in a transaction of its own, so that only the failing piece is refused.
    """

    def __init__(self, engine: sa.Engine, *, notify: Callable[[set[str]], None], max_waiting: int = 10_000) -> None:
        """Prepare the writer; `start` starts its thread.

        Args:
            engine: The engine that may write.
            notify: Called after each commit with the topics to notify.
            max_waiting: Number of tasks that may wait; more are refused with status 503.
        """
        self._engine = engine
        self._notify = notify
        self._max_waiting = max_waiting
        self._queue: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._loop, name="writer", daemon=True)
        self.after_rollback: list[Callable[[], None]] = []
        """Functions called after a rollback: caches filled during the transaction are wrong."""
        self._committing = False
        """Whether the commit was sent: an error may then mean that it succeeded all the same."""
        self.commits = 0
        self.tasks = 0
        self.seconds = 0.0
        """Time spent in transactions."""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Finish the submitted work, then end the thread."""
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()

    @property
    def queue_length(self) -> int:
        """The number of waiting tasks."""
        return self._queue.qsize()

    def submit(self, work: Callable[[Transaction], T]) -> Future[T]:
        """Submit work; the future has its result once it is committed and on disk.

        Raises:
            RequestError: too much work waits (503).
        """
        return self.submit_grouped(_run_each, work)

    def submit_grouped(self, work: GroupWork, item: Any, *, durable: bool = True) -> Future[Any]:
        """Submit work that is done together with other work of its kind.

        Args:
            work: Called once per transaction with all waiting items of this kind.
            item: What this call contributes.
            durable: Whether the commit must wait for the disk, see `Backend.begin`. Work that the client would submit
                again after a power failure need not wait.

        Raises:
            RequestError: too much work waits (503).
        """
        if self._queue.qsize() >= self._max_waiting:
            raise RequestError(503, "the server has more to write than it can", hint="try again soon", retry_after=5)
        task = _Task(work, item, durable)
        self._queue.put(task)
        return task.future

    def _loop(self) -> None:
        running = True
        while running:
            entries = [self._queue.get()]
            while len(entries) < _MAX_TASKS_PER_COMMIT and not self._queue.empty():
                entries.append(self._queue.get())
            tasks = [task for task in entries if task is not None and task.future.set_running_or_notify_cancel()]
            running = None not in entries
            if tasks:
                self._process(tasks)

    def _process(self, tasks: list[_Task], *, reconnect: bool = True) -> None:
        started = time.perf_counter()
        try:
            transaction, results = self._commit(tasks)
        except BaseException as error:
            self._handle_error(tasks, error, reconnect=reconnect)
            return
        self.commits += 1
        self.tasks += len(tasks)
        self.seconds += time.perf_counter() - started
        for call in transaction.after_commit:
            _log_errors(call)
        for task, result in results:
            task.future.set_result(result)
        if transaction.topics:
            _log_errors(lambda: self._notify(transaction.topics))

    def _handle_error(self, tasks: list[_Task], error: BaseException, *, reconnect: bool) -> None:
        for call in self.after_rollback:
            call()
        if reconnect and not self._committing and backend_of(self._engine).connection_lost(self._engine, error):
            self._engine.dispose()
            self._process(tasks, reconnect=False)
        elif len(tasks) == 1:
            tasks[0].future.set_exception(error)
        else:
            for task in tasks:
                self._process([task])

    def _commit(self, tasks: list[_Task]) -> tuple[Transaction, list[tuple[_Task, Any]]]:
        kinds: dict[GroupWork, list[_Task]] = {}
        for task in tasks:
            kinds.setdefault(task.work, []).append(task)
        results: list[tuple[_Task, Any]] = []
        self._committing = False
        durable = any(task.durable for task in tasks)
        with backend_of(self._engine).begin(self._engine, durable=durable) as connection:
            transaction = Transaction(connection)
            for work, group in kinds.items():
                results += zip(group, work(transaction, [task.item for task in group]), strict=True)
            transaction.flush()
            self._committing = True
        return transaction, results
