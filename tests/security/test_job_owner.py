"""A user's code runs with that user's agents only, whoever presses "retry" or "requeue"."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

ALL_SCOPES = ("read", "write", "submit", "agent")
CODE = {"attack.py": "print('code of mallory')"}


def _submit(user: httpx.Client, group: str | None = None) -> int:
    body = {"kind": "script", "name": "attack", "files": CODE, "arguments": ["attack.py"], "group": group}
    response = user.post("/api/v1/jobs", json=body)
    assert response.status_code == 201, response.text
    return int(response.json()["id"])


def _agent(user: httpx.Client, group: str | None = None) -> int:
    body = {"name": "own", "uid": "0123456789abcdef", "slots": {"cpus": 8, "memory": 1 << 33}, "group": group}
    response = user.post("/api/v1/agents", json=body)
    assert response.status_code == 201, response.text
    return int(response.json()["id"])


def _orders(user: httpx.Client, agent: int) -> list[int]:
    answer = user.post(f"/api/v1/agents/{agent}/poll", json={"wait": 0}).json()
    return [order["job"] for order in answer["orders"]]


@pytest.fixture
def mallory(person: Any) -> httpx.Client:
    """The author of the code: a user with an agent of the own."""
    user: httpx.Client = person("mallory", scopes=ALL_SCOPES, group="trackers")
    return user


@pytest.mark.parametrize("victim", ["member", "administrator"])
def test_a_retried_job_stays_with_its_author(victim: str, person: Any, client: httpx.Client, mallory: Any) -> None:
    other = client if victim == "administrator" else person("ada", scopes=ALL_SCOPES, group="trackers")
    private_agent, job = _agent(other), _submit(mallory, "trackers")
    assert mallory.post(f"/api/v1/jobs/{job}/cancel").status_code == 200
    response = other.post(f"/api/v1/jobs/{job}/retry")
    assert response.status_code == 201, response.text
    copy = response.json()
    assert copy["owner"].startswith("mallory") and copy["retry_of"] == job and copy["group"] == "trackers"
    assert _orders(other, private_agent) == [], "an agent of another user got the code of mallory"
    assert copy["id"] in _orders(mallory, _agent(mallory))


def test_a_retried_job_without_a_group_reaches_its_author_only(client: httpx.Client, mallory: httpx.Client) -> None:
    private_agent, group_agent, job = _agent(client), _agent(client, "trackers"), _submit(mallory)
    mallory.post(f"/api/v1/jobs/{job}/cancel")
    copy = client.post(f"/api/v1/jobs/{job}/retry").json()
    assert copy["group"] is None
    assert _orders(client, private_agent) == _orders(client, group_agent) == []
    assert copy["id"] in _orders(mallory, _agent(mallory))


def test_a_requeued_job_stays_with_its_author(client: httpx.Client, mallory: httpx.Client) -> None:
    private_agent, job = _agent(client), _submit(mallory)
    mallory.post(f"/api/v1/jobs/{job}/cancel")
    assert client.post(f"/api/v1/jobs/{job}/requeue").json()["owner"].startswith("mallory")
    assert _orders(client, private_agent) == []
    assert job in _orders(mallory, _agent(mallory))


def test_users_outside_the_group_cannot_retry(person: Any, mallory: httpx.Client) -> None:
    job = _submit(mallory, "trackers")
    assert person("eve", scopes=ALL_SCOPES).post(f"/api/v1/jobs/{job}/retry").status_code == 404
