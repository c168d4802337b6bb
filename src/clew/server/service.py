"""Everything a server holds: database, writer, people, hub. Routes get it as `request.app.state.service`."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import sqlalchemy as sa

from clew.core.files import write_text
from clew.server.accounts.callers import Caller, People, add_token, add_user, record
from clew.server.accounts.rate_limit import Doorman
from clew.server.config import ServiceConfig
from clew.server.database import Database, open_database
from clew.server.database.tables import runs, tokens, users
from clew.server.database.writer import Change, Writer
from clew.server.events.notifications import Hub
from clew.server.monitoring.prometheus import Meter
from clew.server.problems import missing
from clew.server.runs.ingestion import Book
from clew.server.storage.artefact_store import Incoming, Store

T = TypeVar("T")


class Owned(NamedTuple):
    """Whose a run is."""

    owner: int
    group: int | None
    job: int | None


@dataclass(frozen=True)
class Service:
    """An open server. `close` ends it."""

    config: ServiceConfig
    database: Database
    writer: Writer
    people: People
    hub: Hub
    meter: Meter
    doorman: Doorman
    book: Book
    store: Store
    incoming: Incoming = field(default_factory=Incoming)
    owners: dict[int, Owned] = field(default_factory=dict)
    """Of the runs that report."""

    @classmethod
    def open(cls, config: ServiceConfig) -> Service:
        """Open or make the database and start its writer.

        Raises:
            ConfigError: see `open_database` and `Store.claim`.
        """
        config.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        store = Store(config.store or config.folder / "artefacts", config.folder)
        if config.store is not None:
            store.claim(_name(config.folder))
        database = open_database(config.url)
        hub = Hub()
        writer = Writer(database.writer, told=hub.tell, waiting=config.limits.waiting)
        book = Book()
        writer.undone.append(book.forget)
        writer.start()
        door = Doorman(config.limits.bad_tokens)
        return cls(config, database, writer, People(database), hub, Meter(), door, book, store)

    def close(self) -> None:
        """Write what waits, then give everything back."""
        self.hub.stop()
        self.writer.stop()
        self.database.close()

    def write(self, work: Callable[[Change], T]) -> T:
        """Do work in the writer's thread and wait for the commit. For routes that are plain functions."""
        return self.writer.do(work).result()

    async def write_soon(self, work: Callable[[Change], T]) -> T:
        """The same for coroutines."""
        return await asyncio.wrap_future(self.writer.do(work))

    def known(self, run: int, caller: Caller) -> bool:
        """Whether a run is known to be the caller's, without asking the database."""
        row = self.owners.get(run)
        return row is not None and caller.sees(row)

    def look(self, run: int, caller: Caller) -> None:
        """Ask the database.

        Raises:
            RefusedError: 404.
        """
        query = sa.select(runs.c.owner, runs.c.group, runs.c.job).where(runs.c.id == run)
        with self.database.read() as connection:
            row = connection.execute(query).one_or_none()
        if row is None or not caller.sees(row):
            raise missing("run", run)
        self._remember(run, Owned(*row))

    def begin_run(self, change: Change, run: int, facts: Mapping[str, Any]) -> None:
        """It is being made, with these columns: what it reports needs no look at the database."""
        self.book.begin(run, facts)
        owned = Owned(facts["owner"], facts["group"], facts["job"])
        change.after.append(lambda: self._remember(run, owned))

    def _remember(self, run: int, owned: Owned) -> None:
        if len(self.owners) > 20_000:
            self.owners.clear()
        self.owners[run] = owned

    def forget_run(self, run: int) -> None:
        """It was deleted, or given to others."""
        self.owners.pop(run, None)
        self.book.forget(run)

    def first_token(self, name: str) -> str | None:
        """Make an administrator of that name and a token, on the first start; None later."""
        return self.write(lambda change: _first(change, name))

    def local_token(self, user: str, *, name: str, scopes: list[str], seconds: float | None) -> str:
        """A token for who can open the database anyway; the user is made, or made an administrator, as it needs."""
        expires = None if seconds is None else time.time() + seconds

        def work(change: Change) -> str:
            row = change.execute(sa.select(users).where(users.c.name == user)).one_or_none()
            number = row.id if row is not None else add_user(change, user, admin="admin" in scopes)
            if row is not None and "admin" in scopes and not row.admin:
                change.execute(users.update().where(users.c.id == number).values(admin=True))
            key, text = add_token(change, number, scopes, name=name, expires=expires)
            record(change, None, "make token", f"token:{key}", user=number, scopes=scopes, locally=True)
            return text

        return self.write(work)

    def guarded(self) -> bool:
        """Whether anybody could log in: there is a token that is good."""
        with self.database.read() as connection:
            query = sa.select(tokens.c.id).where(tokens.c.revoked.is_(None), tokens.c.kind == "token")
            return connection.execute(query.limit(1)).first() is not None


def _name(folder: Path) -> str:
    """What tells this server from others, for as long as its folder is there."""
    file = folder / "name.txt"
    if not file.exists():
        write_text(file, secrets.token_hex(8))
    return file.read_text()


def _first(change: Change, name: str) -> str | None:
    if change.execute(sa.select(users.c.id).limit(1)).first() is not None:
        return None
    number, text = add_token(change, add_user(change, name, admin=True), ["admin"], name="first start")
    record(change, None, "first start", f"token:{number}", name=name)
    return text
