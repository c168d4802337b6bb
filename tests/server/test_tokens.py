"""Tokens in a real database: who they belong to, what they allow, and when they end."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from clew.client.server_proof import proof, token_digest
from clew.server.accounts import audit, tokens
from clew.server.accounts.audit import record_action
from clew.server.accounts.tokens import NewTokenRow, TokenCache, check_scopes, revoke_token, with_implied_scopes
from clew.server.config import ServiceConfig
from clew.server.database import tables
from clew.server.problems import RequestError
from clew.server.service import Service
from tests.server.accounts import SetTime, caller_of, new_group, new_token, new_user


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    opened = Service.open(ServiceConfig(folder=tmp_path / "service"))
    yield opened
    opened.close()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SetTime:
    clock = SetTime()
    for module in (tokens, audit):
        monkeypatch.setattr(module, "time", clock)
    return clock


def test_a_token_gives_its_user_with_groups_and_scopes(service: Service) -> None:
    ada = new_user(service, "ada", group="trackers")
    new_user(service, "bob", group="jets")
    number, text = new_token(service, NewTokenRow(ada, ["write"], "laptop"))
    caller = caller_of(service, text)
    assert (caller.user, caller.name, caller.token) == (ada, "ada", number)
    assert caller.scopes == {"read", "write"} and caller.groups == {new_group(service, "trackers")}
    assert not caller.admin and not caller.session and caller.job is None and caller.expires is None


def test_only_the_hash_and_the_first_characters_of_a_token_are_stored(service: Service, clock: SetTime) -> None:
    number, text = new_token(service, NewTokenRow(new_user(service, "ada"), ["read"], "laptop"))
    with service.database.read() as connection:
        row = connection.execute(sa.select(tables.tokens).where(tables.tokens.c.id == number)).one()
    assert text.startswith("clew_") and len(text) == 5 + 43
    assert (row.hash, row.hint) == (hashlib.sha256(text.encode()).hexdigest(), text[:10])
    assert (row.created, row.kind, row.name) == (clock.now, "token", "laptop")
    assert text not in map(str, row)


def test_an_unknown_token_gives_no_caller(service: Service) -> None:
    new_token(service, NewTokenRow(new_user(service, "ada"), ["read"], "laptop"))
    assert service.tokens.look_up("clew_wrong") is None
    assert service.tokens.cached("clew_wrong") is None


def test_a_token_ends_at_its_time(service: Service, clock: SetTime) -> None:
    ada = new_user(service, "ada")
    _, text = new_token(service, NewTokenRow(ada, ["read"], "short", expires=clock.now + 10))
    assert caller_of(service, text).expires == clock.now + 10
    clock.now += 9
    assert service.tokens.cached(text) is not None
    clock.now += 1
    assert service.tokens.cached(text) is None
    assert service.tokens.look_up(text) is None


def test_a_token_is_looked_up_again_after_half_a_minute(service: Service, clock: SetTime) -> None:
    _, text = new_token(service, NewTokenRow(new_user(service, "ada"), ["read"], "laptop"))
    assert service.tokens.cached(text) is None
    caller = caller_of(service, text)
    clock.now += 30
    assert service.tokens.cached(text) == caller
    clock.now += 1
    assert service.tokens.cached(text) is None


def test_a_change_of_accounts_empties_the_cache(service: Service) -> None:
    _, text = new_token(service, NewTokenRow(new_user(service, "ada"), ["read"], "laptop"))
    caller_of(service, text)
    service.tokens.clear()
    assert service.tokens.cached(text) is None and service.tokens.version == 1


def test_the_cache_does_not_grow_without_limit(service: Service) -> None:
    ada, cache = new_user(service, "ada"), TokenCache(service.database, max_cached=2)
    texts = [new_token(service, NewTokenRow(ada, ["read"], str(number)))[1] for number in range(3)]
    for text in texts[:2]:
        cache.look_up(text)
    assert all(cache.cached(text) for text in texts[:2])
    cache.look_up(texts[2])
    assert [cache.cached(text) is not None for text in texts] == [False, False, True]


def test_a_revoked_token_ends_with_those_made_from_it(service: Service) -> None:
    ada = new_user(service, "ada")
    parent, text = new_token(service, NewTokenRow(ada, ["write"], "laptop"))
    _, session = new_token(service, NewTokenRow(ada, ["read"], "browser", kind="session", parent=parent))
    _, other = new_token(service, NewTokenRow(ada, ["read"], "other"))
    assert caller_of(service, session).session
    service.write(lambda transaction: revoke_token(transaction, caller_of(service, text), parent))
    assert service.tokens.look_up(text) is None and service.tokens.look_up(session) is None
    assert service.tokens.look_up(other) is not None


def test_a_token_that_is_revoked_twice_keeps_the_first_time(service: Service, clock: SetTime) -> None:
    number, text = new_token(service, NewTokenRow(new_user(service, "ada"), ["write"], "laptop"))
    caller, first = caller_of(service, text), clock.now
    for _ in range(2):
        service.write(lambda transaction: revoke_token(transaction, caller, number))
        clock.now += 5
    with service.database.read() as connection:
        assert connection.scalar(sa.select(tables.tokens.c.revoked)) == first


def test_a_token_ends_when_the_one_it_was_made_from_expires(service: Service, clock: SetTime) -> None:
    ada = new_user(service, "ada")
    parent, _ = new_token(service, NewTokenRow(ada, ["read"], "short", expires=clock.now + 10))
    _, child = new_token(service, NewTokenRow(ada, ["read"], "browser", kind="session", parent=parent))
    assert service.tokens.look_up(child) is not None
    clock.now += 11
    assert service.tokens.look_up(child) is None


def test_users_revoke_their_own_tokens_and_administrators_all(service: Service) -> None:
    ada, eve = new_user(service, "ada"), new_user(service, "eve")
    root = new_user(service, "root", admin=True)
    number, text = new_token(service, NewTokenRow(ada, ["read"], "laptop"))
    callers = [caller_of(service, new_token(service, NewTokenRow(user, ["admin"], "x"))[1]) for user in (eve, root)]
    for caller, token in ((callers[0], number), (callers[1], 999)):
        with pytest.raises(RequestError, match="no such token") as refused:
            service.write(functools.partial(revoke_token, caller=caller, token=token))
        assert refused.value.status == 404
    assert service.tokens.look_up(text) is not None
    service.write(lambda transaction: revoke_token(transaction, callers[1], number))
    assert service.tokens.look_up(text) is None


def test_a_disabled_user_has_no_valid_token(service: Service) -> None:
    ada = new_user(service, "ada")
    _, text = new_token(service, NewTokenRow(ada, ["read"], "laptop"))
    service.write(lambda transaction: transaction.execute(tables.users.update().values(disabled=True)))
    assert service.tokens.look_up(text) is None


def test_the_scope_admin_counts_for_administrators_only(service: Service) -> None:
    for name, admin in (("ada", False), ("root", True)):
        user = new_user(service, name, admin=admin)
        caller = caller_of(service, new_token(service, NewTokenRow(user, ["admin"], "x"))[1])
        assert caller.admin is admin and ("admin" in caller.scopes) is admin
    plain = caller_of(service, new_token(service, NewTokenRow(user, ["read"], "x"))[1])
    assert not plain.admin


@pytest.mark.parametrize(
    ("scope", "all_scopes"),
    [
        ("read", {"read"}),
        ("write", {"read", "write"}),
        ("submit", {"read", "write", "submit"}),
        ("agent", {"agent"}),
        ("admin", {"read", "write", "submit", "agent", "admin"}),
    ],
)
def test_scopes_include_others(scope: str, all_scopes: set[str]) -> None:
    assert with_implied_scopes([scope]) == all_scopes


def test_a_token_gives_no_scope_that_it_lacks(service: Service) -> None:
    _, text = new_token(service, NewTokenRow(new_user(service, "ada"), ["write"], "laptop"))
    check_scopes(caller_of(service, text), ["read", "write"])
    with pytest.raises(RequestError, match="cannot give agent, submit") as refused:
        check_scopes(caller_of(service, text), ["read", "submit", "agent"])
    assert refused.value.status == 403


def test_a_caller_has_changed_when_its_rights_have(service: Service) -> None:
    ada = new_user(service, "ada")
    _, text = new_token(service, NewTokenRow(ada, ["write"], "laptop"))
    caller = service.tokens.with_address(caller_of(service, text), "10.0.0.7")
    assert caller.address == "10.0.0.7" and service.tokens.is_unchanged(caller)
    assert not service.tokens.is_unchanged(dataclasses.replace(caller, scopes=frozenset({"read"})))
    assert not service.tokens.is_unchanged(dataclasses.replace(caller, token=999))


def test_the_last_use_of_tokens_is_saved_once(service: Service, clock: SetTime) -> None:
    number, text = new_token(service, NewTokenRow(new_user(service, "ada"), ["read"], "laptop"))
    caller_of(service, text)
    clock.now += 3
    service.tokens.cached(text)
    used = sa.select(tables.tokens.c.used).where(tables.tokens.c.id == number)
    for moment in (clock.now, None):
        service.write(service.tokens.save_last_used)
        with service.database.read() as connection:
            assert connection.scalar(used) == moment
        service.write(lambda transaction: transaction.execute(tables.tokens.update().values(used=None)))


def test_the_audit_log_names_user_token_and_address(service: Service, clock: SetTime) -> None:
    _, text = new_token(service, NewTokenRow(new_user(service, "ada"), ["write"], "laptop"))
    caller = service.tokens.with_address(caller_of(service, text), "10.0.0.7")
    service.write(lambda transaction: record_action(transaction, caller, "delete", "run:17", reason="old"))
    service.write(lambda transaction: record_action(transaction, None, "sweep", "artefacts"))
    with service.database.read() as connection:
        rows = [tuple(row)[1:] for row in connection.execute(sa.select(tables.audit).order_by(tables.audit.c.id))]
    assert rows == [
        (clock.now, caller.user, caller.token, "10.0.0.7", "delete", "run:17", {"reason": "old"}),
        (clock.now, None, None, "", "sweep", "artefacts", None),
    ]


def test_a_server_proves_that_it_has_a_token(service: Service, clock: SetTime) -> None:
    ada = new_user(service, "ada")
    number, text = new_token(service, NewTokenRow(ada, ["write"], "laptop", expires=clock.now + 10))
    digest = token_digest(text)
    asked = service.tokens.proof(digest[:16], "nonce", "127.0.0.1:1")
    assert asked == proof(digest, "nonce", "127.0.0.1:1")
    names = (digest[:15], digest[:17], digest, "", "0" * 16, "%" * 16)
    assert [service.tokens.proof(name, "nonce", "127.0.0.1:1") for name in names] == [None] * 6
    clock.now += 11
    assert service.tokens.proof(digest[:16], "nonce", "127.0.0.1:1") is None, "it has expired"
    clock.now -= 11
    service.write(lambda transaction: revoke_token(transaction, caller_of(service, text), number))
    assert service.tokens.proof(digest[:16], "nonce", "127.0.0.1:1") is None, "it is revoked"
