"""Requests of users that would take all memory or processor time: refused before anything is built."""

from __future__ import annotations

import httpx
import pytest
from pydantic import ValidationError

from clew.tuning.config import TuneConfig

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
    many = "+".join(["a"] * 4000)
    response = client.get(f"/api/v1/runs?search={many}")
    assert response.status_code == 422 and "at most 10 words" in response.json()["error"]
    assert client.get("/api/v1/runs?search=a+b").status_code == 200
