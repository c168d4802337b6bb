"""A mistake in a recipe that an agent runs: its file, line and message reach the user in every way a job is shown."""

from __future__ import annotations

import html
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from clew import Client, Dataset
from tests.jobs.agent.conftest import StartAgent
from tests.jobs.agent.test_jobs import command
from tests.server.conftest import Live
from tests.server.dashboard.test_pages import logged_in
from tests.tuning import RECIPE

pytestmark = pytest.mark.timeout(300)
ClientFor = Callable[..., Client]
FORWARD = 'return model(batch["x"]).squeeze(1)'
PREPARE = "        return events\n"
STUDY = """
recipe: my_recipe.py
train: {epochs: 1, threads: 1}
tune: {space: {train.optimizer.lr: {log: [1e-3, 1e-1]}}, trials: 4, parallel: 1, failures: 1}
"""


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "500")


def recipe(folder: Path, old: str, new: str) -> str:
    """Write a recipe with a mistake, and return the place of the mistake."""
    text = Path(RECIPE).read_text().replace(old, new)
    (folder / "my_recipe.py").write_text(text)
    number = next(number for number, line in enumerate(text.splitlines(), 1) if new.strip() in line)
    return f"my_recipe.py:{number}: "


def check(ada: Client, live: Live, place: str, *words: str) -> None:
    """The job of the user has failed with exit code 2, and its place and message are shown everywhere."""
    (job,) = ada.jobs.list()
    assert (job.state, job.exit_code) == ("failed", 2), job
    token = ada.connection.http.headers["Authorization"].removeprefix("Bearer ")
    with logged_in(live, token) as browser:
        pages = [html.unescape(browser.get(page).text) for page in ("/jobs", f"/jobs/{job.id}")]
    shown = [command(ada, *verb).stdout for verb in (("jobs",), ("jobs", job.id), ("logs", job.id))]
    for text in (job.reason, *pages, *shown):
        joined = " ".join(text.split())
        assert not [word for word in (place.strip(), *words) if word not in joined], text
        assert "--debug" not in text and "Traceback" not in text


@pytest.mark.long
def test_a_mistake_in_the_network_is_reported_with_its_line(
    shared_server: Live,
    client_for: ClientFor,
    start_agent: StartAgent,
    flat: Dataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ada = client_for("ada")
    start_agent(ada, clew=True)
    place = recipe(tmp_path, FORWARD, 'return model(batch["x"]).squeeeze(1)')
    words = ("--dataset", flat.path, "--workers", 2, "--set", "train.threads=1", "--wait")
    finished = command(ada, "submit", "my_recipe.py", *words, cwd=tmp_path)
    assert finished.returncode == 2, finished
    assert place in " ".join(finished.stdout.split())
    check(ada, shared_server, place, "AttributeError", "squeeeze(1)", "in forward()")
    monkeypatch.setenv("COLUMNS", "80")
    assert f"failed  code/{place}AttributeError" in command(ada, "jobs").stdout, "the reason is cut, not left out"


@pytest.mark.long
def test_a_mistake_in_prepare_is_reported_with_its_line_and_the_input(
    shared_server: Live, client_for: ClientFor, start_agent: StartAgent, tmp_path: Path
) -> None:
    ada = client_for("ada")
    start_agent(ada, clew=True)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["y"] = np.ones((50, 3), np.float32), np.ones(50, np.float32)
    place = recipe(tmp_path, PREPARE, "        return events.oops()\n")
    inputs = f"prepare.input={tmp_path / 'a.h5'}"
    finished = command(ada, "submit", "my_recipe.py", "--kind", "prepare", "--set", inputs, "--wait", cwd=tmp_path)
    assert finished.returncode == 2, finished
    check(ada, shared_server, place, "AttributeError", "events.oops()", "a.h5", "50 events")


@pytest.mark.long
def test_a_mistake_in_the_trials_of_a_study_is_reported_with_its_line(
    shared_server: Live, client_for: ClientFor, start_agent: StartAgent, flat: Dataset, tmp_path: Path
) -> None:
    ada = client_for("ada")
    start_agent(ada, clew=True)
    place = recipe(tmp_path, FORWARD, 'return model(batch["x"]).squeeeze(1)')
    (tmp_path / "study.yaml").write_text(STUDY)
    words = ("--kind", "tune", "--dataset", flat.path, "--wait")
    finished = command(ada, "submit", "study.yaml", *words, cwd=tmp_path)
    assert finished.returncode != 0, finished
    check(ada, shared_server, place, "AttributeError", "squeeeze(1)")
