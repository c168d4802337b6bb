"""Opens a database: one connection that writes, and a pool of connections that only read."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from clew.errors import ConfigError
from clew.server.database.backend import READER_CONNECTIONS, Backend, backend_named


@dataclass(frozen=True)
class Database:
    """An open database: `writer` is for the one thread that writes, `readers` for all other threads."""

    url: sa.URL
    writer: sa.Engine
    readers: sa.Engine
    lock: Any
    stop_maintenance: Callable[[], None]

    @contextlib.contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """Open a connection that sees one snapshot of the database and cannot write."""
        with self.readers.connect() as connection:
            yield connection

    def close(self) -> None:
        """Close all connections and release the database for another server."""
        self.stop_maintenance()
        self.readers.dispose()
        self.writer.dispose()
        self.lock.close()


def open_database(url: str) -> Database:
    """Open or create a database, upgrade its tables and reserve it: one server uses a database at a time.

    Args:
        url: `sqlite:///FILE` or `postgresql://USER@HOST/NAME`.

    Raises:
        ConfigError: the URL is wrong, the database cannot be reached, or another server uses it.
    """
    from clew.server.database.migrate import upgrade

    parsed = parse_url(url)
    backend = _backend(parsed)
    with contextlib.ExitStack() as stack:
        try:
            lock = backend.claim(parsed)
            stack.callback(lock.close)
            writer = backend.create_engine(parsed, writes=True)
            stack.callback(writer.dispose)
            upgrade(writer)
            readers = backend.create_engine(parsed, writes=False)
            stack.callback(readers.dispose)
            _open_all(readers)
        except ModuleNotFoundError as error:
            raise ConfigError(f"{error.name} is not installed; pip install 'clew[postgres]'") from None
        except sa.exc.OperationalError as error:
            reason = " ".join(str(error.orig).split())
            raise ConfigError(f"{without_password(parsed)}: the database cannot be opened ({reason})") from error
        stack.pop_all()
    return Database(parsed, writer, readers, lock, backend.start_maintenance(parsed))


def _open_all(readers: sa.Engine) -> None:
    """Open every connection of the pool, so that the files and sockets of a server do not grow with its load."""
    with contextlib.ExitStack() as stack:
        for _ in range(READER_CONNECTIONS):
            stack.enter_context(readers.connect())


def parse_url(url: str) -> sa.URL:
    """Parse `sqlite:///FILE` or `postgresql://USER@HOST/NAME`.

    Raises:
        ConfigError: the URL has another form.
    """
    try:
        parsed = sa.make_url(url)
    except sa.exc.ArgumentError:
        raise ConfigError(f"--database {url}: expected postgresql://USER@HOST/NAME or sqlite:///FILE") from None
    return _backend(parsed).normalise(parsed)


def without_password(url: sa.URL) -> str:
    """Return a URL for messages, with the password hidden."""
    return url.render_as_string(hide_password=True)


def _backend(url: sa.URL) -> Backend:
    try:
        return backend_named(url.get_backend_name())
    except KeyError:
        raise ConfigError(
            f"--database {without_password(url)}: expected postgresql://USER@HOST/NAME or sqlite:///FILE"
        ) from None
