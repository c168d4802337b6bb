"""What a caller may see: rows of its own, of its groups, of its job; everything for administrators."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import sqlalchemy as sa

from clew.server.accounts.caller import Caller
from clew.server.accounts.users import add_user, group_id, user_id
from clew.server.config import ServiceConfig
from clew.server.database.tables import jobs, runs, users, views
from clew.server.problems import RequestError
from clew.server.service import Service
from tests.server.accounts import new_group, new_user


def caller(*, groups: tuple[int, ...] = (), admin: bool = False, job: int | None = None) -> Caller:
    return Caller(user=1, name="ada", admin=admin, scopes=frozenset(), groups=frozenset(groups), token=1, job=job)


OWN = {"owner": 1, "group": None, "job": None}
OTHER = {"owner": 2, "group": None, "job": None}
GROUP = {"owner": 2, "group": 5, "job": None}
JOB = {"owner": 2, "group": None, "job": 7}
ROWS = (OWN, OTHER, GROUP, JOB)
CALLERS = [
    (caller(), [True, False, False, False]),
    (caller(groups=(5, 6)), [True, False, True, False]),
    (caller(groups=(6,)), [True, False, False, False]),
    (caller(admin=True), [True, True, True, True]),
    (caller(job=7), [False, False, False, True]),
    (caller(job=8, admin=True, groups=(5,)), [False, False, False, False]),
]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    opened = Service.open(ServiceConfig(folder=tmp_path / "service"))
    yield opened
    opened.close()


@pytest.mark.parametrize(("who", "seen"), CALLERS)
def test_a_caller_sees_its_rows(who: Caller, seen: list[bool]) -> None:
    assert [who.can_see(SimpleNamespace(**row)) for row in ROWS] == seen


@pytest.mark.parametrize(("who", "seen"), CALLERS)
def test_lists_show_the_rows_that_a_caller_sees(who: Caller, seen: list[bool]) -> None:
    engine = sa.create_engine("sqlite://")
    table = sa.Table("t", sa.MetaData(), *(sa.Column(name, sa.Integer) for name in ("id", "owner", "group", "job")))
    with contextlib.closing(engine.connect()) as connection:
        table.create(connection)
        connection.execute(table.insert(), [{"id": number, **row} for number, row in enumerate(ROWS)])
        found = set(connection.scalars(sa.select(table.c.id).where(who.visible(table))))
    engine.dispose()
    assert [number in found for number in range(len(ROWS))] == seen


def test_the_token_of_a_job_sees_nothing_that_has_no_job() -> None:
    assert not caller(job=7).can_see(SimpleNamespace(owner=1, group=None))
    assert str(caller(job=7).visible(views)) == str(sa.false())
    assert "job" in runs.c and str(caller(job=7).visible(runs)) == str(runs.c.job == 7)


def _job(service: Service, kind: str, group: int | None) -> int:
    owner = new_user(service, "owner")
    row = {column.name: 0 for column in jobs.c if not column.nullable and column.name != "id"}
    return service.write(
        lambda transaction: transaction.add(jobs, **{**row, "owner": owner, "group": group, "kind": kind})
    )


def test_the_token_of_a_job_is_good_for_one_kind(service: Service) -> None:
    number = _job(service, "prepare", None)
    with service.database.read() as connection:
        caller(job=number).check_job_kind("prepare", connection)
        caller().check_job_kind("train", connection)
        with pytest.raises(RequestError, match="its own run only") as refused:
            caller(job=number).check_job_kind("train", connection)
    assert refused.value.status == 403


def test_a_caller_names_groups_that_it_is_in(service: Service) -> None:
    mine, other = new_group(service, "trackers"), new_group(service, "jets")
    with service.database.read() as connection:
        assert caller(groups=(mine,)).group_id(None, connection) is None
        assert caller(groups=(mine,)).group_id("trackers", connection) == mine
        assert caller(admin=True).group_id("jets", connection) == other
        for who, name in ((caller(groups=(mine,)), "jets"), (caller(admin=True), "none"), (caller(), "trackers")):
            with pytest.raises(RequestError, match=f"no such group: {name}") as refused:
                who.group_id(name, connection)
            assert refused.value.status == 404


def test_the_token_of_a_job_names_the_group_of_its_job(service: Service) -> None:
    mine, other = new_group(service, "trackers"), new_group(service, "jets")
    who = caller(job=_job(service, "train", mine), groups=(other,))
    with service.database.read() as connection:
        assert who.group_id(None, connection) == mine
        assert who.group_id("trackers", connection) == mine
        with pytest.raises(RequestError, match="no such group: jets"):
            who.group_id("jets", connection)


def test_users_and_groups_are_found_by_name(service: Service) -> None:
    ada, trackers = new_user(service, "ada"), new_group(service, "trackers")
    with service.database.read() as connection:
        assert (user_id(connection, "ada"), group_id(connection, "trackers")) == (ada, trackers)
        for look_up in (user_id, group_id):
            with pytest.raises(RequestError, match="nobody") as refused:
                look_up(connection, "nobody")
            assert refused.value.status == 404


def test_a_new_user_is_active_and_no_administrator(service: Service) -> None:
    new_user(service, "ada")
    new_user(service, "root", admin=True)
    with service.database.read() as connection:
        rows = connection.execute(sa.select(users.c.name, users.c.admin, users.c.disabled)).all()
    assert sorted(map(tuple, rows)) == [("ada", False, False), ("root", True, False)]
    with pytest.raises(RequestError, match="already a user ada") as refused:
        service.write(lambda transaction: add_user(transaction, "ada"))
    assert refused.value.status == 409
