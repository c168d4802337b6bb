"""Users and groups in the database."""

from __future__ import annotations

import time

import sqlalchemy as sa

from clew.server.database.tables import groups, users
from clew.server.database.writer import Transaction
from clew.server.problems import RequestError, not_found

USER_NAME = r"^[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}$"
"""Names of users that an administrator may give."""


def add_user(transaction: Transaction, name: str, *, admin: bool = False) -> int:
    """Add a user and return the user's id.

    Raises:
        RequestError: the name is taken.
    """
    if transaction.scalar(sa.select(users.c.id).where(users.c.name == name)) is not None:
        raise RequestError(409, f"there is already a user {name}", where="name", hint="choose another name")
    return transaction.add(users, name=name, admin=admin, disabled=False, created=time.time())


def user_id(connection: sa.Connection, name: str) -> int:
    """Return the id of a user.

    Raises:
        RequestError: there is no such user.
    """
    number = connection.execute(sa.select(users.c.id).where(users.c.name == name)).scalar()
    if number is None:
        raise RequestError(404, f"no such user: {name}", hint="administrators create users with POST /api/v1/users")
    return int(number)


def group_id(connection: sa.Connection, name: str) -> int:
    """Return the id of a group.

    Raises:
        RequestError: there is no such group.
    """
    number = connection.execute(sa.select(groups.c.id).where(groups.c.name == name)).scalar()
    if number is None:
        raise not_found("group", name)
    return int(number)
