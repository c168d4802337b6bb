"""Users and tokens in the database of a service within the test process, and a clock for the accounts."""

from __future__ import annotations

import time

import sqlalchemy as sa

from clew.server.accounts.caller import Caller
from clew.server.accounts.tokens import NewTokenRow, add_token
from clew.server.accounts.users import add_user
from clew.server.database.tables import groups, members
from clew.server.service import Service


class SetTime:
    """Stands for the module `time`: the tests set the seconds since 1970."""

    def __init__(self) -> None:
        self.now = time.time()

    def time(self) -> float:
        return self.now


def new_user(service: Service, name: str, *, admin: bool = False, group: str = "") -> int:
    """Add a user, and a group of which the user is a member."""
    user = service.write(lambda transaction: add_user(transaction, name, admin=admin))
    if group:
        number = new_group(service, group)
        service.write(lambda transaction: transaction.execute(members.insert().values(user=user, group=number)))
    return user


def new_group(service: Service, name: str) -> int:
    """The id of a group, which is added if it does not exist."""
    with service.database.read() as connection:
        number = connection.scalar(sa.select(groups.c.id).where(groups.c.name == name))
    return number or service.write(lambda transaction: transaction.add(groups, name=name, created=0.0))


def new_token(service: Service, token: NewTokenRow) -> tuple[int, str]:
    """Add a token; its id and its text."""
    return service.write(lambda transaction: add_token(transaction, token))


def caller_of(service: Service, text: str) -> Caller:
    """The caller that a valid token belongs to."""
    caller = service.tokens.look_up(text)
    assert caller is not None
    return caller
