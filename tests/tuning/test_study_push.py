"""A study that runs while the user is logged in appears on the server, with its trials and their runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import clew
from clew.client.connection import Connection
from clew.runs import Run
from clew.runs.push import Pusher
from clew.tuning.config import TuneConfig
from tests.server.conftest import Live


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    server = Live(tmp_path / "service").start()
    yield server
    server.stop()


@pytest.mark.timeout(120)
def test_a_study_is_registered_with_its_trials_and_runs(
    live: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEW_SERVER", live.url)
    monkeypatch.setenv("CLEW_TOKEN", live.token)
    config = TuneConfig.model_validate({"space": {"x": {"uniform": [0, 1]}}, "trials": 3})
    clew.tune(config, tmp_path / "widths", function=lambda values: values["x"] ** 2)
    with live.client() as client:
        (study,) = client.get("/api/v1/studies").json()["items"]
        assert study["name"].startswith("widths-") and study["external"]
        assert study["counts"] == {"complete": 3} and len(study["best"]) == 1
        run = Run.create(tmp_path / "widths" / "trials" / "trial-0002", config={"recipe": "x"}, environment={})
        with run.writer("rank-0") as writer:
            writer.write("start", schema=1, host="here", pid=1, rank=0, ranks=1)
        with Connection(live.url, live.token) as connection:
            Pusher(run, connection).push()
        (row,) = client.get("/api/v1/runs").json()["items"]
        assert (row["study"], row["trial"]) == (study["id"], 2)
