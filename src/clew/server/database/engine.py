"""Connections: one that writes, and a pool of those that only read."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event

from clew.core.file_lock import hold_lock
from clew.errors import ConfigError

_PRAGMAS = ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "busy_timeout=10000", "cache_size=-65536")
_LOCK = 7265_2539
"""The number by which servers of one PostgreSQL database know of each other."""
READERS = 8
_RESTED = 1.0
"""Seconds after which a connection is asked whether it still is one. Asking each time would take as long as a write."""


@dataclass(frozen=True)
class Database:
    """What `open_database` gives: `writer` for the one thread that changes things, `readers` for everybody."""

    url: sa.URL
    writer: sa.Engine
    readers: sa.Engine
    lock: Any

    @property
    def sqlite(self) -> bool:
        """Whether it is a file."""
        return self.url.get_backend_name() == "sqlite"

    @contextlib.contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """A connection that sees one moment and cannot write."""
        with self.readers.connect() as connection:
            yield connection

    def close(self) -> None:
        """Give all connections and the claim on the database back."""
        self.readers.dispose()
        self.writer.dispose()
        self.lock.close()


def open_database(url: str) -> Database:
    """Open or make a database, bring its tables up to date and claim it: it has one server at a time.

    Raises:
        ConfigError: the URL is wrong, the database cannot be reached, or another server has it.
    """
    from clew.server.database.migrate import upgrade

    parsed = parse(url)
    with contextlib.ExitStack() as stack:
        try:
            lock = claim(parsed)
            stack.callback(lock.close)
            writer = _engine(parsed, writes=True)
            stack.callback(writer.dispose)
            upgrade(writer)
        except ModuleNotFoundError as error:
            raise ConfigError(f"{error.name} is not installed; pip install 'clew[postgres]'") from None
        except sa.exc.OperationalError as error:
            raise ConfigError(f"{shown(parsed)}: the database cannot be opened ({_reason(error)})") from error
        stack.pop_all()
    return Database(parsed, writer, _engine(parsed, writes=False), lock)


def parse(url: str) -> sa.URL:
    """`sqlite:///FILE` or `postgresql://USER@HOST/NAME`.

    Raises:
        ConfigError: it is neither.
    """
    try:
        found = sa.make_url(url)
    except sa.exc.ArgumentError:
        raise ConfigError(f"--database {url}: expected postgresql://USER@HOST/NAME or sqlite:///FILE") from None
    kind = found.get_backend_name()
    if kind not in ("sqlite", "postgresql"):
        raise ConfigError(f"--database {shown(found)}: expected postgresql://USER@HOST/NAME or sqlite:///FILE")
    return found.set(drivername="postgresql+psycopg") if kind == "postgresql" else found


def shown(url: sa.URL) -> str:
    """For people: without the password."""
    return url.render_as_string(hide_password=True)


def _reason(error: sa.exc.OperationalError) -> str:
    return " ".join(str(error.orig).split())


def claim(url: sa.URL) -> Any:
    """Something to `close` when the database may be another server's."""
    if url.get_backend_name() == "sqlite":
        return _claim_file(Path(str(url.database)))
    connection = sa.create_engine(url, poolclass=sa.NullPool).connect()
    if not connection.execute(sa.select(sa.func.pg_try_advisory_lock(_LOCK))).scalar():
        connection.close()
        raise ConfigError(f"{shown(url)}: another server uses this database; stop that one first")
    connection.commit()
    return connection


def _claim_file(path: Path) -> Any:
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = contextlib.ExitStack()
    try:
        lock.enter_context(hold_lock(path.with_name(f"{path.name}.lock"), timeout=0))
    except BlockingIOError:
        raise ConfigError(f"{path}: another server uses this database; stop that one first") from None
    if not path.exists():
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
    return lock


def _engine(url: sa.URL, *, writes: bool) -> sa.Engine:
    if url.get_backend_name() == "sqlite":
        return _sqlite(url, writes=writes)
    options: dict[str, Any] = {} if writes else {"options": "-c default_transaction_read_only=on"}
    size = {"pool_size": 1, "max_overflow": 0} if writes else {"pool_size": READERS, "max_overflow": READERS}
    engine = sa.create_engine(url, connect_args=options, hide_parameters=True, **size)

    @event.listens_for(engine, "checkin")
    def rest(_: Any, record: Any) -> None:
        record.info["since"] = time.monotonic()

    @event.listens_for(engine, "checkout")
    def look(connection: Any, record: Any, _: Any) -> None:
        if time.monotonic() - record.info.get("since", math.inf) > _RESTED and not _answers(engine, connection):
            raise sa.exc.InvalidatePoolError

    return engine


def _answers(engine: sa.Engine, connection: Any) -> bool:
    try:
        return engine.dialect.do_ping(connection)
    except engine.dialect.loaded_dbapi.Error:
        return False


def _sqlite(url: sa.URL, *, writes: bool) -> sa.Engine:
    size = {"pool_size": 1, "max_overflow": 0} if writes else {"pool_size": READERS, "max_overflow": READERS}
    engine = sa.create_engine(
        url, poolclass=sa.QueuePool, connect_args={"check_same_thread": False}, hide_parameters=True, **size
    )

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # the driver would begin transactions late, and only for some statements
        for pragma in (*_PRAGMAS, *(() if writes else ("query_only=ON",))):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine
