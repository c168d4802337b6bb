"""Tokens, groups and their permissions."""

from __future__ import annotations

from typing import Any

import httpx

from tests.server.conftest import Live


def _run(client: httpx.Client, uid: str, **more: Any) -> dict[str, Any]:
    response = client.post("/api/v1/runs", json={"uid": uid, "name": uid, **more})
    assert response.status_code == 201, response.text
    return dict(response.json())


def test_the_first_start_makes_one_administrator(shared_server: Live) -> None:
    with shared_server.client() as client:
        me = client.get("/api/v1/me").json()
    assert me["admin"] and "submit" in me["scopes"]


def test_nothing_without_a_token(shared_server: Live) -> None:
    for headers in ({}, {"Authorization": "Bearer clew_wrong"}, {"Authorization": "Basic YTpi"}):
        response = httpx.get(f"{shared_server.url}/api/v1/runs", headers=headers)
        assert response.status_code == 401
        assert response.json()["hint"]


def test_users_see_their_own_runs_and_those_of_their_groups(person: Any) -> None:
    ada, bob, eve = person("ada", group="trackers"), person("bob", group="trackers"), person("eve")
    private, shared = _run(ada, "own"), _run(ada, "shared", group="trackers")
    assert bob.get(f"/api/v1/runs/{shared['id']}").status_code == 200
    assert {run["id"] for run in bob.get("/api/v1/runs").json()["items"]} >= {shared["id"]}
    for stranger, number in ((bob, private["id"]), (eve, private["id"]), (eve, shared["id"])):
        assert stranger.get(f"/api/v1/runs/{number}").status_code == 404
        assert stranger.delete(f"/api/v1/runs/{number}").status_code == 404
        assert number not in {run["id"] for run in stranger.get("/api/v1/runs").json()["items"]}
    assert eve.post("/api/v1/runs", json={"uid": "x", "name": "x", "group": "trackers"}).status_code == 404


def test_the_same_uid_is_the_same_run(person: Any) -> None:
    ada = person("ada")
    first = _run(ada, "twice")
    again = ada.post("/api/v1/runs", json={"uid": "twice", "name": "twice"})
    assert (again.status_code, again.json()["id"]) == (200, first["id"])


def test_a_revoked_token_ends_at_once_with_its_sessions(shared_server: Live, person: Any) -> None:
    ada = person("ada", scopes=("read",))
    token = ada.headers["Authorization"].removeprefix("Bearer ")
    with httpx.Client(base_url=shared_server.url) as browser:
        assert browser.post("/api/v1/session", json={"token": token}).status_code == 204
        assert browser.get("/api/v1/me").status_code == 200
        number = ada.get("/api/v1/tokens").json()[0]["id"]
        assert ada.delete(f"/api/v1/tokens/{number}").status_code == 204
        assert browser.get("/api/v1/me").status_code == 401
    assert ada.get("/api/v1/me").status_code == 401


def test_a_token_made_by_another_ends_with_it(shared_server: Live, person: Any) -> None:
    ada = person("ada", scopes=("write",))
    first = ada.get("/api/v1/tokens").json()[0]
    tokens = [ada.post("/api/v1/tokens", json={"name": "more", "scopes": ["read"], "days": None}).json()]
    token = ada.headers["Authorization"].removeprefix("Bearer ")
    with httpx.Client(base_url=shared_server.url, headers={"X-Clew": "1"}) as browser:
        assert browser.post("/api/v1/session", json={"token": token}).status_code == 204
        tokens.append(browser.post("/api/v1/tokens", json={"name": "page", "scopes": ["read"], "days": 3000}).json())
    assert [each["expires"] for each in tokens] == [first["expires"]] * 2
    with shared_server.client(tokens[0]["token"]) as reader:
        assert reader.post("/api/v1/tokens", json={"name": "x", "scopes": ["read"]}).status_code == 403
        assert reader.delete(f"/api/v1/tokens/{first['id']}").status_code == 403
    assert ada.delete(f"/api/v1/tokens/{first['id']}").status_code == 204
    for each in tokens:
        with shared_server.client(each["token"]) as reader:
            assert reader.get("/api/v1/me").status_code == 401


def test_a_stream_ends_with_its_token(person: Any) -> None:
    ada = person("ada")
    run = _run(ada, "watched")["id"]
    number = ada.get("/api/v1/tokens").json()[0]["id"]
    other = person("ada")
    with ada.stream("GET", f"/api/v1/runs/{run}/events") as events:
        response = []
        for line in events.iter_lines():
            response.append(line)
            if line == "event: run":
                assert other.delete(f"/api/v1/tokens/{number}").status_code == 204
                other.patch(f"/api/v1/runs/{run}", json={"name": "secret"})
    assert "event: run" in response and not any("secret" in line for line in response)


def test_a_browser_changes_nothing_without_the_header(shared_server: Live) -> None:
    with httpx.Client(base_url=shared_server.url) as browser:
        cookie = browser.post("/api/v1/session", json={"token": shared_server.token}).headers["set-cookie"]
        assert "HttpOnly" in cookie and "samesite=strict" in cookie.lower()
        body = {"uid": "browser", "name": "browser"}
        assert browser.post("/api/v1/runs", json=body).status_code == 403
        assert browser.post("/api/v1/runs", json=body, headers={"X-Clew": "1"}).status_code == 201


def test_scopes_hold(person: Any) -> None:
    reader = person("ada", scopes=("read",))
    assert reader.get("/api/v1/runs").status_code == 200
    assert reader.post("/api/v1/runs", json={"uid": "x", "name": "x"}).status_code == 403
    assert reader.get("/api/v1/users").status_code == 403
    assert reader.post("/api/v1/tokens", json={"name": "more", "scopes": ["write"]}).status_code == 403
    assert reader.post("/api/v1/tokens", json={"name": "x", "scopes": ["read"], "user": "root"}).status_code == 403


def test_a_changed_user_is_answered_with_its_groups(person: Any, client: httpx.Client) -> None:
    name = person("ada", group="trackers").get("/api/v1/me").json()["name"]
    changed = client.patch(f"/api/v1/users/{name}", json={"quota_jobs": 2}).json()
    assert (changed["quota_jobs"], changed["groups"]) == (2, ["trackers"])
