"""Requests of users that would take all memory or processor time: refused before anything is built."""

from __future__ import annotations

import time
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from clew.tuning.config import TuneConfig
from tests.server.conftest import Live
from tests.server.dashboard.test_pages import logged_in
from tests.server.test_records import make, send

GRID = {
    "sampler": "grid",
    "trials": 10,
    "space": {f"x{number}": {"uniform": [1, 1000], "integer": True} for number in range(4)},
}


def test_a_grid_of_a_million_million_points_is_refused(client: httpx.Client) -> None:
    response = client.post("/api/v1/studies", json={"name": "huge", "tune": GRID})
    assert response.status_code == 422 and "1e+12 points" in response.json()["error"], response.text


def test_a_space_of_thousands_of_parameters_is_refused(client: httpx.Client) -> None:
    tune = {"sampler": "random", "trials": 10, "space": {f"x{n}": {"uniform": [0, 1]} for n in range(1001)}}
    response = client.post("/api/v1/studies", json={"name": "wide", "tune": tune})
    assert response.status_code == 422 and "at most 1000 items" in response.json()["error"], response.text


@pytest.mark.parametrize(
    "space",
    [
        {"x": {"uniform": [0, 10**15], "integer": True}},
        {"x": {"uniform": [0, 1], "step": 1e-12}},
        {f"x{number}": {"choice": [1, 2]} for number in range(40)},
    ],
)
def test_the_size_of_a_grid_is_counted_not_built(space: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match="at most 100,000"):
        TuneConfig.model_validate({"sampler": "grid", "space": space})


def test_a_grid_of_the_allowed_size_is_accepted() -> None:
    TuneConfig.model_validate(
        {
            "sampler": "grid",
            "space": {"x": {"uniform": [1, 100], "integer": True}, "y": {"uniform": [1, 1000], "integer": True}},
        }
    )


def test_a_search_of_thousands_of_words_is_refused(client: httpx.Client) -> None:
    for count, message in ((90, "at most 10 words"), (4000, "200 characters")):
        many = "+".join(["a"] * count)
        response = client.get(f"/api/v1/runs?search={many}")
        assert response.status_code == 422 and message in response.json()["error"], response.text
    assert client.get("/api/v1/runs?search=a+b").status_code == 200


def test_a_long_word_is_not_searched_for(client: httpx.Client) -> None:
    """The database compares it with every place of every setting."""
    response = client.get("/api/v1/runs", params={"search": "a" * 5000})
    assert response.status_code == 422 and "200 characters" in response.json()["error"], response.text
    assert client.get("/api/v1/runs", params={"search": "a" * 200}).status_code == 200


@pytest.mark.parametrize(
    "tune",
    [
        {"sampler": {"name": "cmaes", "population": 10**9}, "space": {"x": {"uniform": [0, 1]}}},
        {"space": {"x": {"choice": list(range(20_000))}}},
    ],
    ids=["population", "choices"],
)
def test_a_sampler_that_would_take_all_memory_is_refused(tune: dict[str, object], client: httpx.Client) -> None:
    response = client.post("/api/v1/studies", json={"name": "huge", "tune": tune})
    assert response.status_code == 422 and "10000" in response.json()["error"], response.text


def test_a_page_of_records_ends_before_it_takes_all_memory(client: httpx.Client, request: Any) -> None:
    number = make(client, request.node.name)
    for seq in range(6):
        large = {"seq": seq, "time": 1.0, "kind": "note", "text": "a" * 3_000_000}
        send(client, number, large)
    place, pages, after = f"/api/v1/runs/{number}/records", [], -1
    while after is not None:
        page = client.get(place, params={"after": after, "limit": 1000})
        assert len(page.content) < 12_000_000
        pages += page.json()["items"]
        after = page.json()["next"]
    assert [each["seq"] for each in pages] == list(range(6))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("runs", {"uid": "huge", "name": "huge", "config": {"a": "a" * 2_000_000}}),
        ("benchmarks", {"name": "huge", "document": {"a": "a" * 2_000_000}}),
        ("studies", {"name": "huge", "tune": {"space": {"a" * 2_000_000: {"uniform": [0, 1]}}}}),
    ],
)
def test_documents_that_lists_read_again_are_small(path: str, body: dict[str, object], client: httpx.Client) -> None:
    assert client.post(f"/api/v1/{path}", json=body).status_code == 413


def test_a_form_of_millions_of_fields_is_refused(shared_server: Live) -> None:
    with logged_in(shared_server, shared_server.token) as browser:
        many = "&".join(f"a{number}=" for number in range(100_000))
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        answer = browser.post("/submit", content=many, headers=headers)
        assert answer.status_code == 422 and "at most 5,000 fields" in answer.text


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "studies/1/trials", {"trials": [1] * 500_000}),
        ("POST", "runs/changes", {"runs": ["a"] * 500_000}),
        ("POST", "jobs", {f"a{number}": 1 for number in range(200_000)}),
    ],
    ids=["trials", "runs", "keys"],
)
def test_a_body_of_a_million_mistakes_is_answered_in_a_short_time(
    method: str, path: str, body: dict[str, object], client: httpx.Client
) -> None:
    """To list them one by one stopped the server for half a minute."""
    started = time.monotonic()
    response = client.request(method, f"/api/v1/{path}", json=body)
    assert response.status_code == 422 and len(response.content) < 500, response.text[:500]
    assert " more)" not in response.text, "all mistakes were listed"
    assert time.monotonic() - started < 20
