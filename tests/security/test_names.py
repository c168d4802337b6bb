"""Names of settings and metrics belong to the runs that have them: other users neither see nor change them."""

from __future__ import annotations

from typing import Any

import pytest


def make(client: Any, name: str, config: dict[str, Any]) -> int:
    response = client.post("/api/v1/runs", json={"uid": name, "name": name, "config": config})
    assert response.status_code == 201, response.text
    return int(response.json()["id"])


def test_names_of_other_users_runs_are_not_told(person: Any) -> None:
    ada, mallory = person("ada"), person("mallory")
    make(ada, "secret", {"higgsino": {"stop_mass_hypothesis": 3}})
    make(mallory, "mine", {"train": {"rate": 1}})
    assert len(ada.get("/api/v1/runs", params={"where": "stop_mass_hypothesis = 3"}).json()["items"]) == 1
    for query in ("stop_mass_hypothesis = 3", "higgsino.stop_mass_hypothesis > 0"):
        answer = mallory.get("/api/v1/runs", params={"where": query})
        assert answer.status_code == 422 and "no run has" in answer.text
    assert "hypothesis" not in mallory.get("/api/v1/runs", params={"where": "stop_mass_hypothesi = 3"}).text
    assert "mean" in mallory.get("/api/v1/runs", params={"where": "rat = 1"}).text, "names of own runs are suggested"


@pytest.mark.parametrize("config", [{"a": {"lr": 7}}, {"lr": 7}])
def test_a_users_names_do_not_change_what_others_find(config: dict[str, Any], person: Any) -> None:
    ada, mallory = person("ada"), person("mallory")
    number = make(ada, "good", {"train": {"optimizer": {"lr": 0.001}}})
    make(mallory, "bad", config)
    found = ada.get("/api/v1/runs", params={"where": "lr < 0.01"})
    assert [each["id"] for each in found.json()["items"]] == [number]
