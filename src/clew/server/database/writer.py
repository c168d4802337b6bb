"""The one thread that changes the database. Requests hand it their work and wait for the commit they share."""

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
from sqlalchemy.dialects import postgresql, sqlite

from clew.server.problems import RefusedError

_LOG = logging.getLogger("clew.server")
T = TypeVar("T")
_MOST = 500
"""Pieces of work that share a commit, at most."""


class Change:
    """A transaction that is being made. Work done for several requests shares it; all of it is committed, or none."""

    def __init__(self, connection: sa.Connection) -> None:
        self.connection = connection
        self.execute = connection.execute
        self.scalar = connection.scalar
        self.topics: set[str] = set()
        self.after: list[Callable[[], None]] = []
        """Called once it is committed."""
        self._later: dict[sa.Table, list[dict[str, Any]]] = {}

    def add(self, table: sa.Table, **row: Any) -> int:
        """Insert a row; its number."""
        key = self.execute(_insert(table), row).inserted_primary_key
        assert key is not None
        return int(key[0])

    def add_new(self, table: sa.Table, **row: Any) -> int | None:
        """The same, unless there is one already that must be the only one; then None."""
        found = self.scalar(_insert_new(table, self.connection.dialect.name), row)
        return None if found is None else int(found)

    def add_later(self, table: sa.Table, **row: Any) -> None:
        """Insert a row together with all others, at the end. They must have the same columns."""
        self._later.setdefault(table, []).append(row)

    def finish(self) -> None:
        """Do what was left for the end."""
        for table, rows in self._later.items():
            self.execute(_insert(table), rows)
        self._later.clear()

    def tell(self, *topics: str) -> None:
        """Who listens to these is woken once it is committed."""
        self.topics.update(topics)


@functools.cache
def _insert(table: sa.Table) -> sa.Insert:
    return table.insert()


@functools.cache
def _insert_new(table: sa.Table, dialect: str) -> Any:
    insert: Any = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}[dialect]
    return insert(table).on_conflict_do_nothing().returning(table.c.id)


Together = Callable[[Change, Sequence[Any]], Sequence[Any]]
"""Does many pieces of work of one kind at once, and returns a result for each."""


@dataclass
class _Task:
    together: Together
    item: Any
    future: Future[Any] = field(default_factory=Future)


def _each(change: Change, items: Sequence[Callable[[Change], Any]]) -> list[Any]:
    return [work(change) for work in items]


def _safely(call: Callable[[], None]) -> None:
    """What is done is done, whatever goes wrong in telling of it; and the thread must live."""
    try:
        call()
    except Exception:
        _LOG.exception("after a commit")


class Writer:
    """Takes whatever waits, does it in one transaction, and answers everybody at once.

    Work may raise `RefusedError`, or anything: the transaction is then undone and each piece is done on its own.
    """

    def __init__(self, engine: sa.Engine, *, told: Callable[[set[str]], None], waiting: int = 10_000) -> None:
        self._engine = engine
        self._told = told
        self._waiting = waiting
        self._queue: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._loop, name="writer", daemon=True)
        self.undone: list[Callable[[], None]] = []
        """Called when a transaction was undone: what was remembered of it is wrong."""
        self._committing = False
        """Whether an error may mean that it is done all the same."""
        self.commits = 0
        self.tasks = 0
        self.seconds = 0.0
        """Spent in transactions."""

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Do what was handed over, then end."""
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()

    @property
    def depth(self) -> int:
        """How much waits."""
        return self._queue.qsize()

    def do(self, work: Callable[[Change], T]) -> Future[T]:
        """Hand over work; the future has its result once it is committed."""
        return self.join(_each, work)

    def join(self, together: Together, item: Any) -> Future[Any]:
        """Hand over work that can be done with others of its kind.

        Raises:
            RefusedError: too much waits.
        """
        if self._queue.qsize() >= self._waiting:
            raise RefusedError(503, "the server has more to write than it can", do="try again soon", wait=5)
        task = _Task(together, item)
        self._queue.put(task)
        return task.future

    def _loop(self) -> None:
        going = True
        while going:
            first = self._queue.get()
            found = [first]
            while len(found) < _MOST and not self._queue.empty():
                found.append(self._queue.get())
            tasks = [task for task in found if task is not None and task.future.set_running_or_notify_cancel()]
            going = None not in found
            if tasks:
                self._answer(tasks)

    def _answer(self, tasks: list[_Task], *, again: bool = True) -> None:
        begun = time.perf_counter()
        try:
            change, results = self._commit(tasks)
        except BaseException as error:
            for forget in self.undone:
                forget()
            if again and self._cut_off(error):
                self._engine.dispose()
                self._answer(tasks, again=False)
                return
            if len(tasks) == 1:
                tasks[0].future.set_exception(error)
                return
            for task in tasks:
                self._answer([task])
            return
        self.commits += 1
        self.tasks += len(tasks)
        self.seconds += time.perf_counter() - begun
        for call in change.after:
            _safely(call)
        for task, result in results:
            task.future.set_result(result)
        if change.topics:
            _safely(lambda: self._told(change.topics))

    def _cut_off(self, error: BaseException) -> bool:
        """Whether the database ended the connection before it could have committed anything: a new one may do."""
        if self._committing or self._engine.dialect.name == "sqlite":
            return False
        return isinstance(getattr(error, "orig", error), self._engine.dialect.loaded_dbapi.OperationalError)

    def _commit(self, tasks: list[_Task]) -> tuple[Change, list[tuple[_Task, Any]]]:
        kinds: dict[Together, list[_Task]] = {}
        for task in tasks:
            kinds.setdefault(task.together, []).append(task)
        results: list[tuple[_Task, Any]] = []
        self._committing = False
        with self._engine.begin() as connection:
            change = Change(connection)
            for together, same in kinds.items():
                results += zip(same, together(change, [task.item for task in same]), strict=True)
            change.finish()
            self._committing = True
        return change, results
