"""Pages over HTTP: permissions, escaping, headers. Tests with a browser are in the other files of this folder."""

from __future__ import annotations

import html
import json
import math
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from typing import Any

import httpx
import pytest

from clew.cli.commands import Commands
from tests.server.conftest import Live
from tests.server.test_records import make, send, start, step

EVIL = "<script>alert('x')</script>"
PARTS = ("", "/system", "/plots", "/files", "/log", "/config", "/environment")


@contextmanager
def logged_in(live: Live, token: str) -> Iterator[httpx.Client]:
    """A client with a cookie and without a token, like a browser."""
    with httpx.Client(base_url=live.url, timeout=30, headers={"Origin": live.url}) as result:
        response = result.post("/login", data={"token": token, "next": "/runs"})
        assert (response.status_code, response.headers["location"]) == (303, "/runs"), response.text
        yield result


class _Reader(HTMLParser):
    """Finds code in a page that a browser would run."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        inline = tag == "script" and "src" not in values and values.get("type") != "application/json"
        links = [values[name] or "" for name in ("href", "src", "action") if name in values]
        outside = any(not link.startswith(("/", "?", "#")) or link.startswith("//") for link in links)
        if inline or outside or any(name.startswith("on") for name in values):
            self.found.append(f"{tag} {attrs}")


def active(page: str) -> list[str]:
    """Elements of a page that run code in it, or lead away from the server."""
    reader = _Reader()
    reader.feed(page)
    return reader.found


@pytest.fixture
def pages(shared_server: Live) -> Iterator[httpx.Client]:
    """The administrator's browser."""
    with logged_in(shared_server, shared_server.token) as result:
        yield result


@pytest.fixture
def evil(client: httpx.Client) -> int:
    """A run in which every text is a script."""
    body = {
        "uid": "evil",
        "name": EVIL,
        "recipe": EVIL,
        "config": {EVIL: EVIL, "train": {"dataset": EVIL}},
        "environment": {EVIL: EVIL, "host": EVIL},
        "dataset": "evil-key",
    }
    run = int(client.post("/api/v1/runs", json=body).json()["id"])
    records = [start(), {**step(1, 1), "loss": {EVIL: 1.0}}, {**step(2, 2), "loss": {EVIL: 0.5}}]
    note = {"seq": 3, "time": 1003.0, "kind": "note", "message": EVIL}
    end = {"seq": 4, "time": 1004.0, "kind": "end", "status": "failed", "message": EVIL}
    send(client, run, *records, note, end)
    return run


def test_every_page_answers(pages: httpx.Client, client: httpx.Client) -> None:
    run = make(client, "ordinary")
    send(client, run, start(), *(step(n, n) for n in range(1, 6)))
    expected = ["/", "/runs", "/studies", "/jobs", "/datasets", "/benchmarks", "/submit", "/accounts"]
    expected += [f"/runs/{run}{part}" for part in PARTS]
    expected += ["/runs?q=ordinary&state=running&sort=-loss", "/runs?sort=seconds", "/submit?kind=tune&recipe=jets"]
    for path in expected:
        response = pages.get(path)
        assert response.status_code == 200, (path, response.text[:2000])
        assert response.headers["content-type"].startswith("text/html")
        policy = response.headers["content-security-policy"]
        assert "script-src 'self';" in policy and "unsafe-eval" not in policy, path


@pytest.mark.parametrize("path", ["/", "/runs", "/jobs/1", "/accounts", "/submit", "/runs/1/log"])
def test_visitors_without_a_session_are_redirected_to_the_login(shared_server: Live, path: str) -> None:
    response = httpx.get(f"{shared_server.url}{path}")
    assert response.status_code == 303
    assert response.headers["location"].startswith("/login")


def test_a_bad_token_is_reported(shared_server: Live) -> None:
    response = httpx.post(f"{shared_server.url}/login", data={"token": EVIL}, headers={"Origin": shared_server.url})
    assert response.status_code in (401, 429) and "set-cookie" not in response.headers
    assert "not good here" in response.text or "too many" in response.text
    assert EVIL not in response.text


def test_logging_out_ends_the_session(shared_server: Live) -> None:
    with logged_in(shared_server, shared_server.token) as browser:
        cookie = browser.cookies["clew_session"]
        assert browser.post("/logout").headers["location"] == "/login"
    again = httpx.get(f"{shared_server.url}/runs", cookies={"clew_session": cookie})
    assert again.status_code == 303


@pytest.mark.parametrize(
    "place", ["//evil.example/", "https://evil.example/", "/\\evil.example", "javascript:alert(1)"]
)
def test_logging_in_leads_nowhere_else(shared_server: Live, place: str) -> None:
    response = httpx.post(
        f"{shared_server.url}/login",
        data={"token": shared_server.token, "next": place},
        headers={"Origin": shared_server.url},
    )
    assert (response.status_code, response.headers["location"]) == (303, "/")


@pytest.mark.parametrize("origin", ["https://evil.example", "null", ""])
def test_forms_of_other_sites_change_nothing(pages: httpx.Client, origin: str) -> None:
    for path in ("/submit", "/logout", "/submit/check"):
        response = pages.post(path, data={"job.name": "stolen"}, headers={"Origin": origin})
        assert response.status_code == 403, path
    assert pages.get("/runs").status_code == 200  # still logged in


def test_nothing_of_others_is_shown(shared_server: Live, person: Callable[..., Any], client: httpx.Client) -> None:
    run = make(client, "of-the-administrator")
    send(client, run, start(), step(1, 1))
    token = person("bob").headers["authorization"].removeprefix("Bearer ")
    with logged_in(shared_server, token) as bob:
        assert all(bob.get(f"/runs/{run}{part}").status_code == 404 for part in (*PARTS, "/report"))
        assert bob.get(f"/compare?run={run}&run=999999").status_code == 404
        assert bob.get(f"/submit?like={run}").status_code == 404
        for path in ("/", "/runs", "/runs?q=of-the", "/datasets"):
            assert "of-the-administrator" not in bob.get(path).text
        assert "Audit" not in bob.get("/accounts").text


def test_every_word_of_a_run_is_escaped(pages: httpx.Client, client: httpx.Client, evil: int) -> None:
    other = make(client, "harmless")
    send(client, other, start(), {**step(1, 1), "loss": {EVIL: 2.0}})
    client.put(f"/api/v1/runs/{evil}/tags", json={"tags": ["tag"]})
    paths = [
        "/",
        "/runs",
        f"/runs?q={EVIL}",
        "/datasets",
        "/datasets/evil-key",
        f"/submit?like={evil}",
        f"/jobs?q={EVIL}",
    ]
    paths += [f"/runs/{evil}{part}" for part in PARTS] + [f"/compare?run={evil}&run={other}", f"/login?next={EVIL}"]
    shown = ""
    for path in paths:
        text = pages.get(path).text
        shown += text
        assert "<script>alert" not in text, path
        assert active(text) == [], path
    assert "&lt;script&gt;alert" in shown


def test_files_of_pages_are_cached_for_ever_and_no_others_are_served(pages: httpx.Client) -> None:
    result = re.findall(r'(?:src|href)="(/static/[^"]+)"', pages.get("/runs").text)
    assert len(result) >= 3
    for path in result:
        response = httpx.get(f"{pages.base_url}".rstrip("/") + path)
        assert response.status_code == 200 and "immutable" in response.headers["cache-control"], path
    for path in ("../frame.py", "..%2fframe.py", "clew.css.bak", "%2e%2e/%2e%2e/etc/passwd"):
        assert pages.get(f"/static/x/{path}").status_code == 404


def test_a_form_without_scripts_becomes_a_job(pages: httpx.Client, client: httpx.Client) -> None:
    values = {"kind": "train", "recipe": "tracking", "job.name": "by-form", "job.dataset": "/data/x", "job.cpus": "2"}
    values |= {"train.epochs": "3", "train.compile": "false", "job.memory_gb": "1.5", "job.minutes": "10"}
    values |= {"job.container": "localhost/clew"}
    response = pages.post("/submit", data=values)
    assert response.status_code == 303, response.text[:3000]
    job = client.get(f"/api/v1{response.headers['location']}").json()
    assert (job["name"], job["kind"], job["dataset"]) == ("by-form", "train", "/data/x")
    assert job["spec"] == {"recipe": "tracking", "train": {"epochs": 3}}
    needs = {"nodes": 1, "workers": 1, "cpus": 2, "gpus": 0, "memory": 1_500_000_000, "wall_time": 600.0, "site": None}
    assert job["resources"] == {**needs, "container": "localhost/clew"}
    page = pages.get(response.headers["location"])
    assert page.status_code == 200 and "by-form" in page.text and "localhost/clew" in page.text
    assert client.post(f"/api/v1/jobs/{job['id']}/cancel").status_code == 200


def test_a_form_that_is_not_right_comes_back_with_what_was_typed(pages: httpx.Client) -> None:
    values = {"kind": "train", "recipe": "tracking", "job.name": EVIL, "train.epochs": "none", "job.minutes": "soon"}
    response = pages.post("/submit", data=values)
    assert response.status_code == 422
    assert 'value="none"' in response.text and "expected a whole number" in response.text
    assert "<script>alert" not in response.text and "&lt;script&gt;" in response.text
    looked = pages.post("/submit/check", data=values).json()
    assert set(looked["fields"]) == {"train.epochs", "job.name", "job.minutes", "job.dataset"}


def test_read_only_users_cannot_submit(shared_server: Live, person: Callable[..., Any]) -> None:
    token = person("reader", scopes=("read",)).headers["authorization"].removeprefix("Bearer ")
    with logged_in(shared_server, token) as reader:
        for path in ("/submit", "/submit/check"):
            assert reader.post(path, data={"kind": "train", "recipe": "tracking"}).status_code == 403


def test_a_field_that_takes_long_to_read_is_refused(pages: httpx.Client) -> None:
    values = {"kind": "train", "recipe": "tracking", "job.name": "long"}
    response = pages.post(
        "/submit/check", data=values | {"train.epochs": "[1]," * 6000}, headers={"Accept": "application/json"}
    )
    assert response.status_code == 422 and "train.epochs: longer" in response.json()["error"]
    for text, wrong in (("[" * 15_000, "recursion"), ("[&a [1], *a]", "aliases")):
        response = pages.post("/submit/check", data=values | {"train.epochs": text})
        assert wrong in response.json()["fields"]["train.epochs"]


def test_a_study_is_drawn_as_it_goes(pages: httpx.Client, client: httpx.Client) -> None:
    space = {"train.optimizer.lr": {"log": [1e-5, 1e-1]}, "model.hidden": {"choice": [16, 32]}}
    tune = {"space": space, "objective": "val/loss", "trials": 13, "sampler": {"name": "random", "seed": 1}}
    study = client.post("/api/v1/studies", json={"name": "drawn", "tune": tune}).json()["id"]
    assert "No trials yet" in pages.get(f"/studies/{study}").text
    for request in client.post(f"/api/v1/studies/{study}/ask", json={"count": 13}).json()[:12]:
        value = (math.log10(request["settings"]["train.optimizer.lr"]) + 3) ** 2
        response = {"trial": request["trial"], "lease": request["lease"], "values": [value]}
        assert client.post(f"/api/v1/studies/{study}/tell", json=response).status_code == 200
    page = pages.get(f"/studies/{study}").text
    figures = [json.loads(text) for text in re.findall(r'<script type="application/json">(.*?)</script>', page)]
    titles = [each["title"] for each in figures]
    assert {"History", "Importance of parameters", "Parallel coordinates (blue is better)"} <= set(titles)
    bars = figures[titles.index("Importance of parameters")]["data"][0]
    assert bars["y"][0] == "train.optimizer.lr"
    assert not any(trace["type"] == "parcoords" for each in figures for trace in each["data"])
    line = re.search(rf'<tr><td><a href="/studies/{study}">.*?</tr>', pages.get("/studies").text, re.DOTALL)
    assert line is not None and "12 of 13, 1 running" in line[0]


def test_trials_that_are_jobs_stand_under_their_study(pages: httpx.Client, client: httpx.Client) -> None:
    values = {"kind": "tune", "recipe": "tracking", "job.name": "spread", "job.dataset": "/data/x", "train.epochs": "7"}
    values |= {"job.trials_as_jobs": "true", "tune.space": "train.optimizer.lr: {log: [1.0e-5, 0.1]}"}
    response = pages.post("/submit", data=values)
    assert response.status_code == 303, response.text[:3000]
    job = client.get(f"/api/v1{response.headers['location']}").json()
    assert job["study"] and job["spec"]["train"]["epochs"] == 7
    trials: list[dict[str, Any]] = []
    for _ in range(300):  # no agent is connected: one trial waits for one
        trials = client.get(f"/api/v1/studies/{job['study']}/trials").json()["items"]
        if trials:
            break
        time.sleep(0.1)
    (trial,) = trials
    assert f'href="/studies/{job["study"]}"' in pages.get(f"/jobs/{job['id']}").text
    assert f'href="/jobs/{trial["job"]}"' in pages.get(f"/studies/{job['study']}").text
    assert f'href="/studies/{job["study"]}"' in pages.get(f"/jobs/{trial['job']}").text
    assert "spread-trial-0000" not in pages.get("/jobs").text
    assert client.post(f"/api/v1/jobs/{job['id']}/cancel").status_code == 200


def test_odd_things_that_are_stored_are_shown(pages: httpx.Client, client: httpx.Client) -> None:
    space = {"a": {"choice": [1, 2]}, "b": {"uniform": [0, 1], "when": {"a": 1}}}
    body = {"name": "odd", "tune": {"space": space, "trials": 3}, "external": True}
    study = client.post("/api/v1/studies", json=body).json()["id"]
    response = [
        {"number": n, "state": "complete", "settings": {"a": 2}, "values": [v]} for n, v in enumerate((1.0, 2.0))
    ]
    text = json.dumps({"trials": [*response, {**response[0], "number": 2, "values": [math.nan], "started": 1e12}]})
    head = {"Content-Type": "application/json"}
    assert client.put(f"/api/v1/studies/{study}/trials", content=text, headers=head).status_code == 204
    run = make(client, "odd")
    note = {"seq": 1, "time": 1001.0, "kind": "note", "message": "half: \ud83d"}
    text = json.dumps({"streams": {"rank-0": [start(), note]}})
    assert client.post(f"/api/v1/runs/{run}/records", content=text, headers=head).status_code == 200
    for path in ("/studies", f"/studies/{study}", f"/runs/{run}", f"/runs/{run}/log"):
        assert pages.get(path).status_code == 200, path
    stored = client.get(f"/api/v1/runs/{run}/records").json()
    assert stored["items"][1]["message"] == "half: \ud83d" and stored["next"] is None
    late = {"streams": {"rank-0": [{"seq": 2, "time": 9e11, "kind": "note"}]}}
    assert client.post(f"/api/v1/runs/{run}/records", json=late).status_code == 422
    assert pages.post("/logout", headers={"Origin": "http://["}).status_code == 403


def test_commands_to_copy_are_commands_of_clew(shared_server: Live, person: Callable[..., Any]) -> None:
    token = person("newcomer").headers["authorization"].removeprefix("Bearer ")
    with logged_in(shared_server, token) as newcomer:
        pages = [
            newcomer.get(path).text for path in ("/", "/runs", "/jobs", "/studies", "/datasets", "/submit?kind=tune")
        ]
    response = {html.unescape(text) for page in pages for text in re.findall(r'data-copy="([^"]+)"', page)}
    verbs = {text.partition("clew ")[2].split()[0] for text in response if "clew " in text}
    assert {"train", "runs", "submit", "agent", "prepare"} <= verbs
    assert verbs <= Commands.lazy.keys()
