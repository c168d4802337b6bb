"""Everything one server holds. Routes get it as `request.app.state.service`."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import sqlalchemy as sa

from clew.core.files import write_text
from clew.server.accounts.audit import record_action
from clew.server.accounts.caller import Caller
from clew.server.accounts.rate_limit import RateLimit
from clew.server.accounts.tokens import NewTokenRow, TokenCache, add_token
from clew.server.accounts.users import add_user
from clew.server.config import ServiceConfig
from clew.server.database import Database, open_database
from clew.server.database.tables import runs, tokens, users
from clew.server.database.writer import DatabaseWriter, Transaction
from clew.server.events.notifications import Notifications
from clew.server.monitoring.prometheus import RequestMetrics
from clew.server.problems import not_found
from clew.server.runs.ingestion import RecordIngestion
from clew.server.storage.artefact_store import ArtefactStore, IncomingUploads

T = TypeVar("T")
_MAX_CACHED_OWNERS = 20_000


class RunOwner(NamedTuple):
    """The owner, group and job of a run."""

    owner: int
    group: int | None
    job: int | None


@dataclass(frozen=True)
class Service:
    """An open server: database, writer, accounts, artefact store and notifications. Call `close` at the end."""

    config: ServiceConfig
    database: Database
    writer: DatabaseWriter
    tokens: TokenCache
    notifications: Notifications
    request_metrics: RequestMetrics
    rate_limit: RateLimit
    ingestion: RecordIngestion
    store: ArtefactStore
    uploads: IncomingUploads = field(default_factory=IncomingUploads)
    run_owners: dict[int, RunOwner] = field(default_factory=dict)
    """Owners of the runs that report."""
    open_streams: Counter[int] = field(default_factory=Counter)
    """Event streams that are open, by user. Only the event loop's thread uses it."""

    @classmethod
    def open(cls, config: ServiceConfig) -> Service:
        """Open or create the database and start its writer.

        Raises:
            ConfigError: see `open_database` and `ArtefactStore.claim`.
        """
        config.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name in ("artefacts", "logs"):  # the folder may exist and be open to others; these hold what users made
            (config.folder / name).mkdir(exist_ok=True)
            (config.folder / name).chmod(0o700)
        store = ArtefactStore(config.store or config.folder / "artefacts", config.folder)
        if config.store is not None:
            store.claim(_server_name(config.folder))
        database = open_database(config.url)
        notifications, ingestion = Notifications(), RecordIngestion()
        writer = DatabaseWriter(database.writer, notify=notifications.notify, max_waiting=config.limits.waiting)
        writer.after_rollback.append(ingestion.forget)
        writer.start()
        return cls(
            config=config,
            database=database,
            writer=writer,
            tokens=TokenCache(database),
            notifications=notifications,
            request_metrics=RequestMetrics(),
            rate_limit=RateLimit(config.limits.bad_tokens),
            ingestion=ingestion,
            store=store,
        )

    def close(self) -> None:
        """Finish the waiting work and close the database."""
        self.notifications.stop()
        self.writer.stop()
        self.database.close()

    def write(self, work: Callable[[Transaction], T]) -> T:
        """Run work in the writer's thread and wait for the commit. For routes that are plain functions."""
        return self.writer.submit(work).result()

    async def write_async(self, work: Callable[[Transaction], T]) -> T:
        """Run work in the writer's thread and await the commit. For coroutines."""
        return await asyncio.wrap_future(self.writer.submit(work))

    def is_known_run(self, run: int, caller: Caller) -> bool:
        """Return whether the caller may see a run, without a query; False if a query is needed."""
        row = self.run_owners.get(run)
        return row is not None and caller.can_see(row)

    def check_run(self, run: int, caller: Caller) -> None:
        """Check with a query that the caller may see a run.

        Raises:
            RequestError: there is no such run for the caller (404).
        """
        query = sa.select(runs.c.owner, runs.c.group, runs.c.job).where(runs.c.id == run)
        with self.database.read() as connection:
            row = connection.execute(query).one_or_none()
        if row is None or not caller.can_see(row):
            raise not_found("run", run)
        self._cache_owner(run, RunOwner(*row))

    def start_run(self, transaction: Transaction, run: int, values: Mapping[str, Any]) -> None:
        """Take a new run into memory, with the columns of its row, so that its records need no query."""
        self.ingestion.start_run(run, values)
        owner = RunOwner(values["owner"], values["group"], values["job"])
        transaction.after_commit.append(lambda: self._cache_owner(run, owner))

    def _cache_owner(self, run: int, owner: RunOwner) -> None:
        if len(self.run_owners) > _MAX_CACHED_OWNERS:
            self.run_owners.clear()
        self.run_owners[run] = owner

    def forget_run(self, run: int) -> None:
        """Drop a run from memory: it was deleted, or its owner or group changed."""
        self.run_owners.pop(run, None)
        self.ingestion.forget(run)

    def first_token(self, name: str) -> str | None:
        """On the first start, add an administrator and return a token; later return None."""
        return self.write(lambda transaction: _first_token(transaction, name))

    def local_token(self, user: str, *, name: str, scopes: list[str], seconds: float | None) -> str:
        """Make a token for a user who can open the database file anyway.

        Args:
            user: The user; added if missing, and made an administrator if `scopes` need it.
            name: Name of the token.
            scopes: Its scopes.
            seconds: Seconds until it expires; None: never.

        Returns:
            The text of the token.
        """
        expires = None if seconds is None else time.time() + seconds

        def work(transaction: Transaction) -> str:
            row = transaction.execute(sa.select(users).where(users.c.name == user)).one_or_none()
            number = row.id if row is not None else add_user(transaction, user, admin="admin" in scopes)
            if row is not None and "admin" in scopes and not row.admin:
                transaction.execute(users.update().where(users.c.id == number).values(admin=True))
            token, text = add_token(transaction, NewTokenRow(number, scopes, name, expires))
            detail = {"user": number, "scopes": scopes, "locally": True}
            record_action(transaction, None, "make token", f"token:{token}", **detail)
            return text

        return self.write(work)

    def has_tokens(self) -> bool:
        """Return whether there is a valid token, so that a user could log in."""
        with self.database.read() as connection:
            query = sa.select(tokens.c.id).where(tokens.c.revoked.is_(None), tokens.c.kind == "token")
            return connection.execute(query.limit(1)).first() is not None


def _server_name(folder: Path) -> str:
    """Return a name that distinguishes this server from others for as long as its folder exists."""
    file = folder / "name.txt"
    if not file.exists():
        write_text(file, secrets.token_hex(8))
    return file.read_text()


def _first_token(transaction: Transaction, name: str) -> str | None:
    if transaction.execute(sa.select(users.c.id).limit(1)).first() is not None:
        return None
    user = add_user(transaction, name, admin=True)
    number, text = add_token(transaction, NewTokenRow(user, ["admin"], "first start"))
    record_action(transaction, None, "first start", f"token:{number}", name=name)
    return text
