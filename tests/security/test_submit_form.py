"""The submit form runs code as the user who sends it: code of other users does not get into it."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.security.test_job_owner import ALL_SCOPES, CODE
from tests.server.conftest import Live
from tests.server.dashboard.test_pages import logged_in

ATTACK = {"recipe": "columns", "model": {"build": "os:system", "arguments": {"command": "touch attacked"}}}
PLAIN = {"recipe": "tracking", "train": {"epochs": 2}}


def _page(live: Live, user: httpx.Client, path: str) -> httpx.Response:
    with logged_in(live, user.headers["Authorization"].removeprefix("Bearer ")) as browser:
        return browser.get(path)


@pytest.fixture
def mallory(person: Any) -> httpx.Client:
    user: httpx.Client = person("mallory", scopes=ALL_SCOPES, group="trackers")
    return user


@pytest.fixture
def ada(person: Any) -> httpx.Client:
    user: httpx.Client = person("ada", scopes=ALL_SCOPES, group="trackers")
    return user


@pytest.mark.parametrize(
    "body",
    [
        {"kind": "script", "files": CODE, "arguments": ["attack.py"]},
        {"kind": "train", "files": CODE, "spec": {"recipe": "attack.py"}},
        {"kind": "train", "spec": ATTACK},
    ],
    ids=["a script", "a recipe", "settings that name code"],
)
@pytest.mark.parametrize("victim", ["member", "administrator"])
def test_a_job_of_another_user_brings_no_code(
    victim: str, body: dict[str, Any], mallory: Any, ada: Any, client: httpx.Client, shared_server: Live
) -> None:
    response = mallory.post("/api/v1/jobs", json={"name": "attack", "group": "trackers", **body})
    assert response.status_code == 201, response.text
    number, user = response.json()["id"], ada if victim == "member" else client
    page = _page(shared_server, user, f"/submit?job={number}")
    assert page.status_code == 403 and "code of mallory" not in page.text and "os:system" not in page.text
    assert "code of another user" in page.text
    assert f"/submit?job={number}" not in _page(shared_server, user, f"/jobs/{number}").text
    assert _page(shared_server, mallory, f"/submit?job={number}").status_code == 200


def test_a_job_of_another_user_without_code_can_be_changed(mallory: Any, ada: Any, shared_server: Live) -> None:
    body = {"kind": "train", "name": "plain", "group": "trackers", "spec": PLAIN}
    number = mallory.post("/api/v1/jobs", json=body).json()["id"]
    assert _page(shared_server, ada, f"/submit?job={number}").status_code == 200
    assert f"/submit?job={number}" in _page(shared_server, ada, f"/jobs/{number}").text


@pytest.mark.parametrize(("config", "status"), [(ATTACK, 403), (PLAIN, 200)])
def test_a_run_of_another_user_brings_no_code(
    config: dict[str, Any], status: int, mallory: Any, ada: Any, shared_server: Live
) -> None:
    body = {"uid": "r", "name": "r", "recipe": config["recipe"], "config": config, "group": "trackers"}
    number = mallory.post("/api/v1/runs", json=body).json()["id"]
    assert _page(shared_server, ada, f"/submit?like={number}").status_code == status
    assert _page(shared_server, mallory, f"/submit?like={number}").status_code == 200


@pytest.mark.parametrize(("key", "value", "status"), [("model.build", "os:system", 403), ("train.epochs", 3, 200)])
def test_trials_that_a_member_pushed_bring_no_code(
    key: str, value: Any, status: int, mallory: Any, ada: Any, shared_server: Live
) -> None:
    study = {"name": "s", "tune": {"space": {key: {"choice": [1, 2]}}}, "external": True, "group": "trackers"}
    number = ada.post("/api/v1/studies", json=study).json()["id"]
    config = {"recipe": "columns", "columns": {"features": ["x"], "labels": ["y"]}}
    run = {"uid": "t", "name": "trial-0000", "recipe": "columns", "config": config, "study": number, "trial": 0}
    assert ada.post("/api/v1/runs", json=run).status_code == 201
    trial = {"number": 0, "state": "complete", "settings": {key: value}, "values": [0.1]}
    assert mallory.put(f"/api/v1/studies/{number}/trials", json={"trials": [trial]}).status_code == 204
    page = _page(shared_server, ada, f"/submit?study={number}")
    assert page.status_code == status and "os:system" not in page.text
