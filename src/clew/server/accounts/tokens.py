"""Tokens: how they are made, revoked and looked up.

A token is `clew_` followed by 32 random bytes. The database stores only its SHA-256.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa

from clew.client.server_proof import NAME_DIGITS, proof, token_digest
from clew.server.accounts.caller import Caller
from clew.server.database import Database
from clew.server.database.tables import members, tokens, users
from clew.server.database.writer import Transaction
from clew.server.problems import forbidden, not_found

SCOPES = {
    "read": "see what belongs to the user and the user's groups",
    "write": "push runs, upload artefacts, tag and delete; includes read",
    "submit": "submit, cancel and retry jobs and studies; includes write",
    "agent": "pull jobs and run them",
    "admin": "everything, for administrators",
}
"""Scopes of a user's tokens. The token of a job has the scope `job`: it gives access to the job's run only."""
_IMPLIED = {"write": {"read"}, "submit": {"read", "write"}, "admin": {"read", "write", "submit", "agent"}}
_CACHE_SECONDS = 30.0
"""Seconds for which a token is not looked up again."""


class TokenCache:
    """Looks up the caller that a token belongs to, and caches the answer for 30 seconds."""

    def __init__(self, database: Database, *, max_cached: int = 10_000) -> None:
        self._database = database
        self._max_cached = max_cached
        self._cache: dict[str, tuple[float, Caller]] = {}
        self._last_used: dict[int, float] = {}
        self.version = 0
        """Increases whenever users, groups or tokens changed."""

    def cached(self, text: str) -> Caller | None:
        """Return the caller without a database query; None if the token is not in the cache or has expired."""
        entry = self._cache.get(token_digest(text))
        now = time.time()
        if entry is None or entry[0] < now or _is_expired(entry[1].expires, now):
            return None
        self._last_used[entry[1].token] = now
        return entry[1]

    def look_up(self, text: str) -> Caller | None:
        """Return the caller from the database.

        Returns:
            None if the token is unknown, revoked or expired, or its user is disabled.
        """
        key, version = token_digest(text), self.version
        with self._database.read() as connection:
            caller = _load_caller(connection, tokens.c.hash == key)
        if caller is not None:
            if len(self._cache) >= self._max_cached:
                self._cache.clear()
            if version == self.version:  # else it may have been revoked meanwhile
                self._cache[key] = (time.time() + _CACHE_SECONDS, caller)
            self._last_used[caller.token] = time.time()
        return caller

    def proof(self, name: str, nonce: str, address: str) -> str | None:
        """Return the proof that a token belongs to this server (`clew.client.server_proof`).

        Args:
            name: The first digits of the token's SHA-256.
            nonce: The random number of the client.
            address: Where this server was reached.

        Returns:
            None if there is no valid token of this name.
        """
        if len(name) != NAME_DIGITS:
            return None
        with self._database.read() as connection:
            key = connection.scalar(sa.select(tokens.c.hash).where(tokens.c.hash.between(name, name + "g")))
            if key is None or _load_caller(connection, tokens.c.hash == key) is None:
                return None
        return proof(key, nonce, address)

    def is_unchanged(self, caller: Caller) -> bool:
        """Return whether a new lookup would give the same caller with the same rights."""
        with self._database.read() as connection:
            current = _load_caller(connection, tokens.c.id == caller.token)
        return current is not None and self.with_address(current, caller.address) == caller

    def save_last_used(self, transaction: Transaction) -> None:
        """Write to the database when tokens were last used."""
        last_used, self._last_used = self._last_used, {}
        for token, moment in last_used.items():
            transaction.execute(tokens.update().where(tokens.c.id == token).values(used=moment))

    @staticmethod
    def with_address(caller: Caller, address: str) -> Caller:
        """Return the caller with the address that the request came from."""
        return replace(caller, address=address)

    def clear(self) -> None:
        """Forget all cached callers. Call this when users, groups or tokens changed."""
        self.version += 1
        self._cache.clear()


def _is_expired(expires: float | None, now: float) -> bool:
    return expires is not None and expires <= now


def _load_caller(connection: sa.Connection, condition: sa.ColumnElement[bool]) -> Caller | None:
    query = sa.select(tokens, users.c.name.label("user_name"), users.c.admin, users.c.disabled).join(users)
    row = connection.execute(query.where(condition)).one_or_none()
    if row is None or row.disabled or not _is_valid(connection, row):
        return None
    groups = connection.scalars(sa.select(members.c.group).where(members.c.user == row.user))
    scopes = with_implied_scopes(row.scopes)
    if not row.admin:
        scopes -= {"admin"}
    return Caller(
        user=row.user,
        name=row.user_name,
        admin="admin" in scopes,
        scopes=scopes,
        groups=frozenset(groups),
        token=row.id,
        expires=row.expires,
        job=row.job,
        session=row.kind == "session",
    )


def _is_valid(connection: sa.Connection, row: Any) -> bool:
    """Neither the token nor the token it was made from is revoked or has expired."""
    if row.revoked is not None or _is_expired(row.expires, time.time()):
        return False
    if row.parent is None:
        return True
    parent = connection.execute(sa.select(tokens).where(tokens.c.id == row.parent)).one_or_none()
    return parent is not None and _is_valid(connection, parent)


def with_implied_scopes(scopes: Iterable[str]) -> frozenset[str]:
    """Return scopes together with those they include."""
    return frozenset(scopes).union(*(_IMPLIED.get(scope, ()) for scope in scopes))


@dataclass(frozen=True)
class NewTokenRow:
    """A token to add to the database."""

    user: int
    scopes: Sequence[str]
    name: str
    expires: float | None = None
    """Seconds since 1970; None: never."""
    kind: str = "token"
    """`token`, `session`, `agent` or `job`."""
    parent: int | None = None
    """The token it was made from, with which it ends."""
    job: int | None = None


def add_token(transaction: Transaction, token: NewTokenRow) -> tuple[int, str]:
    """Add a token to the database.

    Returns:
        The token's id and its text. The text is stored nowhere.
    """
    text = f"clew_{secrets.token_urlsafe(32)}"
    row = {"user": token.user, "name": token.name, "kind": token.kind, "scopes": list(token.scopes)}
    row |= {"hash": token_digest(text), "hint": text[:10], "parent": token.parent, "job": token.job}
    return transaction.add(tokens, **row, created=time.time(), expires=token.expires), text


def revoke_token(transaction: Transaction, caller: Caller, token: int) -> None:
    """Revoke a token. Tokens made from it become invalid too.

    Raises:
        RequestError: the token does not belong to the caller.
    """
    row = transaction.execute(sa.select(tokens).where(tokens.c.id == token)).one_or_none()
    if row is None or not (caller.admin or row.user == caller.user):
        raise not_found("token", token)
    transaction.execute(
        tokens.update().where(tokens.c.id == token, tokens.c.revoked.is_(None)).values(revoked=time.time())
    )


def check_scopes(caller: Caller, scopes: Sequence[str]) -> None:
    """Check that the caller has all scopes of a token it wants to make.

    Raises:
        RequestError: the caller lacks one of them.
    """
    lacking = set(scopes) - caller.scopes
    if lacking:
        raise forbidden(f"this token cannot give {', '.join(sorted(lacking))}: it does not have that scope itself")
