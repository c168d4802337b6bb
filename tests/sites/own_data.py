"""The steps of a user whose samples and models are in a store: jobs of a real server, run by an agent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from clew import Client
from clew.jobs.launchers.launcher import LaunchedJob
from clew.jobs.launchers.local import LocalLauncher
from clew.storage import copy
from clew.storage.models import find_models
from tests.server.conftest import Live
from tests.tuning import RECIPE


@contextmanager
def service_with_agent(folder: Path) -> Iterator[Client]:
    """`clew serve` with its local agent, in the environment of this process."""
    live = Live(folder / "service", options=()).start()
    try:
        with Client(live.url, live.token) as client:
            yield client
    finally:
        live.stop()
        for attempt in (folder / "service" / "agent" / "jobs").glob("*/attempt-*"):
            LocalLauncher().kill(LaunchedJob("local", "", str(attempt)))


def samples_to_model(client: Client, events: Path, samples: str, store: str) -> None:
    """Put events into a store; prepare them by name into the store; train by name; find the model in the store."""
    copy(events, samples)
    small = {"train.epochs": 1, "train.threads": 1}
    prepare = {"prepare.input": samples, "prepare.workers": 1}
    made = client.submit(RECIPE, prepare, kind="prepare", name="points", store=store)
    stored = made.wait(seconds=200).stored
    assert stored is not None and stored in client.datasets.locations(next(iter(client.datasets.list())).key)
    again = client.submit(RECIPE, prepare, kind="prepare", name="again", store=store)
    again.wait(seconds=200)
    assert "it is not prepared again" in again.log()
    job = client.submit(RECIPE, small, dataset=stored, store=store, name="slope")
    job.wait(seconds=200)
    found = [each for each in find_models(store.partition("?")[0]) if each.facts["run"] == "slope"]
    assert [each.location for each in found] == [job.stored]
