"""The steps of a user whose samples and models are in a store: jobs of a real server, run by an agent."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from clew import Client, Dataset
from clew.jobs.launchers.launcher import LaunchedJob
from clew.jobs.launchers.local import LocalLauncher
from clew.storage import copy
from clew.storage.models import find_models
from tests.server.conftest import Live
from tests.sites.roundtrip import User
from tests.tuning import RECIPE

ONCE = "it is not prepared again"
"""What the log of a preparation says whose dataset exists."""


@contextmanager
def service_with_agent(folder: Path) -> Iterator[Live]:
    """`clew serve` with its local agent, in the environment of this process."""
    live = Live(folder / "service", options=()).start()
    try:
        yield live
    finally:
        live.stop()
        for attempt in (folder / "service" / "agent" / "jobs").glob("*/attempt-*"):
            LocalLauncher().kill(LaunchedJob("local", "", str(attempt)))


def event_files(dataset: Dataset, folder: Path) -> Path:
    """Copy the files that a dataset was prepared from."""
    folder.mkdir()
    files = list(dataset.path.parent.glob("events-*"))
    assert files
    for file in files:
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def samples_to_model(live: Live, events: Path, samples: str, store: str) -> None:
    """Put events into a store; prepare them by name into the store; train by name; find the model in the store."""
    copy(events, samples)
    with Client(live.url, live.token) as client:
        _jobs_to_model(client, samples, store)


def _jobs_to_model(client: Client, samples: str, store: str) -> None:
    small = {"train.epochs": 1, "train.threads": 1}
    prepare = {"prepare.input": samples, "prepare.workers": 1}
    made = client.submit(RECIPE, prepare, kind="prepare", name="points", store=store)
    stored = made.wait(seconds=200).stored
    assert stored is not None and stored in client.datasets.locations(next(iter(client.datasets.list())).key)
    again = client.submit(RECIPE, prepare, kind="prepare", name="again", store=store)
    again.wait(seconds=200)
    assert ONCE in again.log()
    job = client.submit(RECIPE, small, dataset=stored, store=store, name="slope")
    job.wait(seconds=200)
    found = [each for each in find_models(store.partition("?")[0]) if each.facts["run"] == "slope"]
    assert [each.location for each in found] == [job.stored]


def commands_to_model(live: Live, folder: Path, events: Path, samples: str, store: str) -> None:
    """The same by commands of a user who works in `folder` and is logged in."""
    user = User(folder, {"CLEW_SERVER": live.url, "CLEW_TOKEN": live.token})
    user.succeeds("data", "put", str(events), samples)
    put = ("--store", store, "--follow")
    prepare = ("submit", RECIPE, "--kind", "prepare", "--input", samples, "--workers", "1", *put)
    user.succeeds(*prepare, "--output", "own-points")
    assert ONCE in user.succeeds(*prepare, "--output", "own-again")
    dataset = _stored(user, "own-points")
    small = ("--epochs", "1", "--set", "train.threads=1")
    user.succeeds("submit", RECIPE, "--dataset", dataset, *small, *put, "--output", "own-slope")
    models = json.loads(user.succeeds("model", "find", store.partition("?")[0], "--json"))
    assert [each["location"] for each in models] == [_stored(user, "own-slope")]
    user.succeeds("model", "get", models[0]["location"], "--output", "model")
    assert "loss" in user.succeeds("evaluate", "model", "--dataset", dataset)


def _stored(user: User, name: str) -> str:
    """Where a job has stored its outputs."""
    (job,) = (each for each in json.loads(user.succeeds("jobs", "--json")) if each["name"] == name)
    return str(job["stored"])


def both_ways(folder: Path, events: Path, samples: str, store: str) -> None:
    """From Python, then by commands, with names of their own in the store. `{}` in a location is that name."""
    with service_with_agent(folder) as live:
        samples_to_model(live, events, samples.format("py"), store.format("py"))
        commands_to_model(live, folder / "user", events, samples.format("sh"), store.format("sh"))


if __name__ == "__main__":  # python -m tests.sites.own_data FOLDER EVENTS SAMPLES STORE: in another network
    both_ways(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
