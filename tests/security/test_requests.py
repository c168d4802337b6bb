"""Requests of strangers and of job tokens."""

from __future__ import annotations

import json
import socket
from typing import Any

import httpx
import pytest

from clew.server.api.route_list import route_list
from tests.security.test_job_owner import ALL_SCOPES
from tests.server.conftest import Live

ROUTES = ["/api/v1/runs", "/api/v1/runs/1/records", "/api/v1/jobs", "/api/v1/datasets", "/api/v1/studies"]


@pytest.mark.parametrize("header", ["", "Authorization: Bearer clew_wrong\r\n", "Cookie: clew_session=x\r\n"])
@pytest.mark.parametrize("path", ROUTES)
def test_a_stranger_is_refused_before_the_body_is_sent(path: str, header: str, shared_server: Live) -> None:
    host, port = shared_server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        request = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 8000000\r\n"
        connection.sendall(f"{request}{header}\r\n".encode() + b'{"uid": ')
        status = connection.recv(1000).split(b" ")[1]
    assert status in (b"401", b"429"), "the server waited for the body"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/api/v1/session"),
        ("POST", "/login"),
        ("POST", "/api/v1/tokens"),
        ("POST", "/api/v1/users"),
        ("POST", "/api/v1/groups"),
        ("POST", "/api/v1/agents"),
        ("POST", "/api/v1/jobs/1/retry"),
    ],
)
def test_routes_of_few_values_take_small_bodies(method: str, path: str, client: httpx.Client) -> None:
    assert client.request(method, path, content=b" " * 100_000).status_code == 413


def test_strangers_do_not_learn_the_version(shared_server: Live) -> None:
    with httpx.Client(base_url=shared_server.url, timeout=60) as stranger:
        assert stranger.get("/healthz").json() == {"status": "ok"}
        assert stranger.get("/api/v1/openapi.json").json()["info"]["version"] == "1"


def _job_token(person: Any, name: str, kind: str = "train", **fields: Any) -> tuple[httpx.Client, httpx.Client]:
    """A user, and a client with the token of a job of this user that an agent has started."""
    user: httpx.Client = person(name, scopes=ALL_SCOPES, group="trackers")
    body = {"kind": kind, "name": "job", "spec": {"recipe": "tagger", "tune": {}}, "arguments": ["x"], **fields}
    response = user.post("/api/v1/jobs", json=body)
    assert response.status_code == 201, response.text
    slots = {"cpus": 8, "memory": 1 << 33}
    agent = user.post("/api/v1/agents", json={"name": "own", "uid": "0123456789abcdef", "slots": slots}).json()["id"]
    orders = user.post(f"/api/v1/agents/{agent}/poll", json={"wait": 0}).json()["orders"]
    (token,) = [order["token"] for order in orders if order["job"] == response.json()["id"]]
    return user, httpx.Client(base_url=user.base_url, headers={"Authorization": f"Bearer {token}"}, timeout=30)


def test_a_job_token_sees_its_own_run_and_nothing_else(person: Any, shared_server: Live) -> None:
    user, job = _job_token(person, "ada")
    other = person("bob", scopes=ALL_SCOPES, group="trackers")
    run = user.post("/api/v1/runs", json={"uid": "of-ada", "name": "of-ada"}).json()["id"]
    shared = other.post("/api/v1/runs", json={"uid": "of-bob", "name": "of-bob", "group": "trackers"}).json()["id"]
    with job:
        for path in (
            "groups",
            "tokens",
            "users",
            "datasets",
            "benchmarks",
            "studies",
            "runs",
            "jobs",
            "agents",
            "audit",
        ):
            response = job.get(f"/api/v1/{path}")
            visible = response.json().get("items") if response.status_code == 200 else []
            assert response.status_code in (200, 403) and not visible, (path, response.text)
        assert job.get("/api/v1/me").json()["groups"] == []
        for number in (run, shared):
            assert job.get(f"/api/v1/runs/{number}").status_code == 404
            record = {"seq": 0, "time": 1.0, "kind": "note", "text": "mine"}
            written = job.post(f"/api/v1/runs/{number}/records", json={"streams": {"rank-0": [record]}})
            assert written.status_code == 404, written.text
        assert job.post("/api/v1/runs", json={"uid": "x", "name": "x", "group": "trackers"}).status_code == 404
        assert job.post("/api/v1/runs", json={"uid": "own", "name": "own"}).status_code == 201


_TUNE = {"trials": 1, "space": {"train.lr": {"uniform": [0.1, 1.0]}}}
_BODIES: dict[str, dict[str, Any]] = {
    "/records": {"streams": {"rank-0": []}},
    "/report": {"trial": 0, "step": 1, "value": 1.0},
    "/tell": {"trial": 0, "values": [1.0]},
    "/trials": {"trials": []},
    "/runs/{number}": {"name": "taken"},
    "/benchmarks": {"name": "n", "document": {}},
    "/datasets": {"key": "z", "name": "n", "location": "/x"},
    "/studies": {"name": "n", "tune": _TUNE, "external": True},
}
"""Valid bodies of the routes that take the token of a job, by the end of their paths."""
_OPEN = {
    "GET /healthz",
    "GET /api/v1/identity",
    "GET /api/v1/me",
    "POST /api/v1/session",
    "DELETE /api/v1/session",
    "POST /api/v1/runs",
}
"""Routes that concern the token itself, or make the run of its job."""


@pytest.mark.parametrize("victim", ["the same user", "a member of the group"])
def test_no_route_opens_what_is_not_of_its_job_to_a_job_token(victim: str, person: Any) -> None:
    user, job = _job_token(person, "ada")
    member, other_job = _job_token(person, "bob", "tune")
    other_job.close()
    owner = user if victim == "the same user" else member
    run = owner.post("/api/v1/runs", json={"uid": "r", "name": "r", "group": "trackers"}).json()["id"]
    study = owner.post("/api/v1/studies", json={"name": "s", "tune": _TUNE, "external": True}).json()["id"]
    assert owner.put(f"/api/v1/runs/{run}/artefacts/a.txt", content=b"x").status_code == 201
    owner.post("/api/v1/datasets", json={"key": "k", "name": "n", "location": "/x", "group": "trackers"})
    number = {"{number}": str(run), "{study}": str(study), "{name:path}": "a.txt", "{key}": "k", "{job}": "1"}
    opened = []
    with job:
        for method, path, _ in route_list():
            if f"{method} {path}" in _OPEN or (method, "tokens" in path) == ("DELETE", True):
                continue  # a token may revoke itself
            url = path
            for name, value in (*number.items(), ("{agent}", "1"), ("{group}", "trackers"), ("{name}", "tagger")):
                url = url.replace(name, value)
            body = next((each for end, each in _BODIES.items() if path.endswith(end)), {})
            sent = body if method in ("POST", "PUT", "PATCH") else None
            answer = job.request(method, url, json=sent)
            opened += (
                [] if answer.status_code in (403, 404) else [(method, path, answer.status_code, answer.text[:200])]
            )
    assert not opened


@pytest.mark.parametrize(("kind", "status"), [("train", 200), ("prepare", 200), ("script", 404)])
def test_a_job_token_learns_the_place_of_its_own_dataset_only(kind: str, status: int, person: Any) -> None:
    fields = {"files": {"a.py": "1"}, "arguments": ["a.py"]} if kind == "script" else {"arguments": []}
    used = {"dataset": "used"} if kind == "train" else {}
    user, job = _job_token(person, "ada", kind, **fields, **used)
    for key in ("used", "other"):
        body = {"key": key, "name": key, "location": f"/data/{key}"}
        assert user.post("/api/v1/datasets", json=body).status_code == 201
    with job:
        assert job.get("/api/v1/datasets/key/used").status_code == status
        other = job.get("/api/v1/datasets/key/other").status_code
    assert other == (200 if kind == "prepare" else 404), "a preparation asks for what it would make"


@pytest.mark.parametrize("kind", ["train", "prepare"])
def test_a_job_token_makes_only_what_its_job_makes(kind: str, person: Any) -> None:
    _, job = _job_token(person, "ada", kind)
    tune = {"trials": 1, "space": {"train.lr": {"uniform": [0.1, 1.0]}}}
    made = {
        "prepare": job.post("/api/v1/datasets", json={"key": "k", "name": "n", "location": "/x"}).status_code,
        "bench": job.post("/api/v1/benchmarks", json={"name": "n", "document": {}}).status_code,
        "tune": job.post("/api/v1/studies", json={"name": "n", "tune": tune, "external": True}).status_code,
    }
    job.close()
    assert made == {each: 201 if each == kind else 403 for each in made}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("runs", {"uid": "half", "name": "half", "recipe": "\ud800"}),
        ("datasets", {"key": "half", "name": "half", "location": "/\ud800"}),
    ],
)
def test_half_of_a_surrogate_pair_is_refused(path: str, body: dict[str, Any], client: httpx.Client) -> None:
    headers = {"Content-Type": "application/json"}
    response = client.post(f"/api/v1/{path}", content=json.dumps(body), headers=headers)
    assert response.status_code == 422, response.text


def test_the_place_of_a_dataset_is_that_of_the_jobs_owner(person: Any) -> None:
    mallory = person("mallory", scopes=ALL_SCOPES, group="trackers")
    ada = person("ada", scopes=ALL_SCOPES, group="trackers")
    poison = {"key": "key-of-ada", "name": "n", "location": "/tmp/poison", "group": "trackers"}
    assert mallory.post("/api/v1/datasets", json=poison).status_code == 201
    ada.post("/api/v1/datasets", json={**poison, "location": "/data/of/ada"})
    job = {"name": "n", "spec": {"recipe": "tagger"}, "dataset": "key-of-ada", "group": "trackers"}
    number = ada.post("/api/v1/jobs", json=job).json()["id"]
    slots = {"cpus": 8, "memory": 1 << 33}
    agent = ada.post("/api/v1/agents", json={"name": "own", "uid": "0123456789abcdef", "slots": slots}).json()["id"]
    orders = ada.post(f"/api/v1/agents/{agent}/poll", json={"wait": 0}).json()["orders"]
    (locations,) = [order["locations"] for order in orders if order["job"] == number]
    assert locations == ["/data/of/ada"]


@pytest.mark.parametrize("proxies", [[], ["127.0.0.1"]])
def test_only_a_trusted_proxy_names_the_address(proxies: list[str], tmp_path: Any) -> None:
    settings = tmp_path / "service.yaml"
    settings.write_text(json.dumps({"trusted_proxies": proxies}))
    live = Live(tmp_path / "service", options=("--no-agent", "--config", str(settings))).start()
    with live.client() as client:
        client.headers["X-Forwarded-For"] = "192.0.2.7"
        client.post("/api/v1/groups", json={"name": "trackers"})
        addresses = {entry["address"] for entry in client.get("/api/v1/audit").json()["items"]}
    live.stop()
    assert ("192.0.2.7" in addresses) is bool(proxies)
