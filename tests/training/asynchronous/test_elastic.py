"""Workers join, leave, hang and send bad updates during a training; the master is killed and resumed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import clew
from clew import Dataset, Run
from clew.errors import ConfigError, LostPeerError, RunError
from clew.training.asynchronous.flat_model import FlatModel, model_fingerprint
from clew.training.asynchronous.messaging.join_token import JoinToken
from clew.training.asynchronous.messaging.tcp import TcpClient
from clew.version import __version__
from tests.training import RECIPES, recipe

pytestmark = pytest.mark.timeout(300)

CLEW = [sys.executable, "-c", "from clew.cli.main import run; run()"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}


class Site:
    """A run that listens, and its processes, which are killed at the end of a test."""

    def __init__(self, flat: Dataset, folder: Path) -> None:
        self.flat, self.path = flat, folder / "run"
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        with self.log(len(self.processes)).open("w") as log:
            process = subprocess.Popen([*CLEW, *arguments], env=ENVIRONMENT, stdout=log, stderr=log)
        self.processes.append(process)
        return process

    def log(self, number: int) -> Path:
        return self.path.with_name(f"log-{number}")

    def output(self, process: subprocess.Popen[bytes]) -> str:
        return self.log(self.processes.index(process)).read_text()

    def wait_for_workers(self, count: int) -> None:
        wait_for(lambda: self.notes().count("joined") >= count)

    def master(self, *settings: str, epochs: int = 20) -> subprocess.Popen[bytes]:
        assignments = ["train.batch_size=8", "train.optimizer.lr=0.01", "slow=0.02", *settings]
        return self.start(
            *["train", str(RECIPES / "line.py"), "--dataset", str(self.flat.path), "--output", str(self.path)],
            *["--strategy", "downpour", "--listen", "127.0.0.1:0", "--workers", "0", "--epochs", str(epochs)],
            *(word for assignment in assignments for word in ("--set", assignment)),
        )

    def worker(self, *settings: str) -> subprocess.Popen[bytes]:
        wait_for(self.run.address_file.exists)
        address = self.run.address_file.read_text()
        return self.start("worker", address, "--token-file", str(self.run.token_file), "--patience", "60s", *settings)

    @property
    def run(self) -> Run:
        return Run(self.path)

    def step(self) -> int:
        record = self.run.last("step") if self.run.records_folder.exists() else None
        return int(record["step"]) if record else 0

    def wait_for_end(self, epochs: int = 20) -> dict[str, Any]:
        """Wait for the end, and check that every batch was done; return the record of the workers."""
        wait_for(lambda: self.run.state == "finished", 100)
        last, workers = self.run.last("step"), self.run.last("workers")
        assert last is not None and workers is not None
        assert last["samples"] == epochs * self.flat.splits["train"]
        assert {record["epoch"] for record in self.run.records(kind="validation")} == set(range(epochs))
        return workers

    def notes(self) -> str:
        if not self.run.records_folder.exists():
            return ""
        return "\n".join(record["message"] for record in self.run.records(kind="note"))


@pytest.fixture
def site(flat: Dataset, tmp_path: Path) -> Iterator[Site]:
    site = Site(flat, tmp_path)
    yield site
    for process in site.processes:
        process.kill()
        process.wait()


def wait_for(condition: Callable[[], Any], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition was not met in time"
        time.sleep(0.05)


@pytest.mark.long
def test_other_workers_take_over_from_a_killed_one(site: Site) -> None:
    master = site.master(epochs=40)
    first, second = site.worker(), site.worker()
    site.wait_for_workers(2)
    before = site.step()
    wait_for(lambda: site.step() > before + 10)
    first.send_signal(signal.SIGKILL)
    site.worker()
    record = site.wait_for_end(40)
    assert master.wait(120) == 0
    assert second.wait(120) == 0
    assert "batches were trained on here" in site.output(second)
    assert record["returned"] > 0
    assert "no heartbeat" in site.notes()


@pytest.mark.long
def test_a_worker_reconnects_to_a_killed_and_resumed_master(site: Site) -> None:
    master = site.master("train.asynchronous.staleness=4", "train.checkpoint_minutes=0.01")
    worker = site.worker()
    wait_for(lambda: site.step() > 60)
    master.send_signal(signal.SIGKILL)
    master.wait()
    again = site.start("train", "--resume", str(site.path))
    site.wait_for_end()
    assert again.wait(120) == 0
    assert worker.wait(120) == 0
    assert "looking for the master" in site.output(worker)


@pytest.mark.parametrize("text", ["guess", "clew_guess", "that of another run"])
def test_a_wrong_token_gets_one_line_and_exit_code_2(text: str, site: Site) -> None:
    site.master()
    wait_for(site.run.address_file.exists)
    address = site.run.address_file.read_text()
    token = text if "guess" in text else str(JoinToken.new())
    command = [*CLEW, "worker", address, "--token", token, "--patience", "3s"]
    done = subprocess.run(command, env=ENVIRONMENT, text=True, capture_output=True, timeout=60)
    assert done.returncode == 2
    (line,) = done.stderr.strip().splitlines()
    reason = {"guess": "this is no token of a training", "clew_guess": "this is a token of a server"}
    assert line.startswith(f"clew: {reason.get(text, f'no master at {address} answered in 3 s')}"), line
    assert "guess" in text or "does not accept this token" in done.stdout
    assert oct(site.run.token_file.stat().st_mode)[-3:] == "600"


def test_a_worker_without_a_master_gives_up(site: Site) -> None:
    done = site.start("worker", "127.0.0.1:9", "--token", str(JoinToken.new()), "--patience", "1s")
    assert done.wait(60) == 2
    assert "no master at 127.0.0.1:9 answered in 1 s" in site.output(done)


class ManualWorker:
    """A worker whose messages the test sends; its master runs in a thread of this process."""

    def __init__(self, flat: Dataset, folder: Path, changes: dict[str, Any], **asynchronous: Any) -> None:
        self.path, self.error = folder / "run", None
        settings: dict[str, Any] = {"epochs": 3, "batch_size": 8, "threads": 1, "workers": 0, "strategy": "downpour"}
        settings |= changes

        def train() -> None:
            listening = {"listen": "127.0.0.1:0", **asynchronous}
            try:
                clew.train(recipe("line"), flat, output=self.path, asynchronous=listening, **settings)
            except Exception as error:
                self.error = error

        self.thread = threading.Thread(target=train, daemon=True)
        self.thread.start()
        self.client = TcpClient()
        run = Run(self.path)
        wait_for(run.address_file.exists)
        self.address, self.token = run.address_file.read_text(), JoinToken.parse(run.token_file.read_text().split()[0])
        self.client.connect(0, self.address, self.token)

    def request(self, kind: str, fields: dict[str, Any], tensor: torch.Tensor | None = None) -> Any:
        self.client.send(0, kind, fields, tensor)
        message = self.client.receive(60)
        assert message is not None
        return message

    def join(self) -> list[int]:
        """Join the training and return a lease."""
        welcome = self.request("hello", {"clew": __version__})
        self.client.number = welcome.fields["number"]
        self.client.start_heartbeat(self.address, self.token)
        self.request("ready", {"model": model_fingerprint(recipe("line").model())})
        status = self.request("report", report())
        lease: list[int] = status.fields["lease"]
        return lease


def report(done: Any = ()) -> dict[str, Any]:
    times = {"seconds": 0.1, "wait": 0.0, "communicate": 0.0, "load": 0.0}
    return {"done": list(done), "losses": {}, "samples": 0, "workers": 1, "wants_lease": True, "version": 0, **times}


@pytest.fixture
def manual_worker(flat: Dataset, tmp_path: Path) -> Iterator[Callable[..., ManualWorker]]:
    workers: list[ManualWorker] = []

    def make(changes: dict[str, Any] | None = None, **asynchronous: Any) -> ManualWorker:
        workers.append(ManualWorker(flat, tmp_path, changes or {}, **asynchronous))
        return workers[0]

    yield make
    for worker in workers:
        worker.client.close()
        if worker.thread.is_alive():  # a real worker finishes the training
            helper = subprocess.Popen(
                [*CLEW, "worker", worker.address, "--token", str(worker.token)],
                env=ENVIRONMENT,
                stdout=subprocess.DEVNULL,
            )
            worker.thread.join(120)
            helper.wait(60)
        assert not worker.thread.is_alive()


def test_a_worker_of_another_version_is_refused(manual_worker: Callable[..., ManualWorker]) -> None:
    answer = manual_worker().request("hello", {"clew": "0.0.1"})
    assert answer.kind == "refused"
    assert "runs clew 0.0.1" in answer.fields["reason"]


def test_a_worker_with_another_model_is_refused(manual_worker: Callable[..., ManualWorker]) -> None:
    other = manual_worker()
    other.request("hello", {"clew": __version__})
    answer = other.request("ready", {"model": model_fingerprint(torch.nn.Linear(2, 2))})
    assert answer.kind == "refused"
    assert "another model" in answer.fields["reason"]


def test_a_worker_that_hangs_loses_its_lease(manual_worker: Callable[..., ManualWorker], flat: Dataset) -> None:
    hanging = manual_worker(lease_seconds=1.0)
    lease = hanging.join()
    assert lease[3] > lease[2]
    run = Run(hanging.path)
    wait_for(lambda: any("no progress in 1 s" in record["message"] for record in run.records(kind="note")))
    with pytest.raises(LostPeerError, match="does not know"):
        hanging.request("report", report())


def test_updates_that_are_not_finite_are_refused_and_the_second_ends_the_run(
    manual_worker: Callable[..., ManualWorker],
) -> None:
    worker = manual_worker()
    lease = worker.join()
    update = torch.full((FlatModel(recipe("line").model()).length,), float("nan"))
    answer = worker.request("push", report([[lease[0], 1]]), update)
    assert answer.fields["void"] and torch.isfinite(answer.tensor).all()
    status = worker.request("report", report())
    worker.client.send(0, "push", report([[status.fields["lease"][0], 1]]), update)
    worker.thread.join(30)
    assert isinstance(worker.error, RunError)
    assert "worker 1" in str(worker.error) and "not finite" in str(worker.error)


@pytest.mark.slow
def test_backup_refuses_an_update_of_older_weights(manual_worker: Callable[..., ManualWorker], flat: Dataset) -> None:
    size = -(-flat.splits["train"] // 6)
    worker = manual_worker({"strategy": "backup", "epochs": 1, "batch_size": size, "validation": "thread"})
    lease, update = worker.join(), torch.ones(FlatModel(recipe("line").model()).length)
    lost = lease[3] - lease[2] - 1
    assert lost > 0
    first = worker.request("push", {**report([[lease[0], 1]]), "wants_lease": False}, update)
    assert first.fields["version"] == 1 and "void" not in first.fields
    weights = first.tensor.clone()
    stale = worker.request("push", report([[lease[0], 1]]), update)  # of version 0
    assert stale.fields["void"] and stale.fields["version"] == 1
    assert torch.equal(stale.tensor, weights)
    answer, version = worker.request("report", report()), 1
    while not answer.fields.get("end"):
        if "lease" not in answer.fields:  # the last validation is not finished yet
            time.sleep(0.05)
            answer = worker.request("report", report())
            continue
        number, _, start, stop = answer.fields["lease"]
        for batch in range(start, stop):
            last = {"wants_lease": batch == stop - 1}
            answer = worker.request("push", {**report([[number, 1]]), "version": version, **last}, update)
            version = answer.fields["version"]
    assert worker.request("goodbye", {"sent": 0, "received": 0}).kind == "goodbye"
    worker.thread.join(60)
    record = Run(worker.path).last("workers")
    assert record is not None and (version, record["returned"]) == (6, lost)


def test_the_failure_of_a_worker_is_recorded_and_others_continue(manual_worker: Callable[..., ManualWorker]) -> None:
    broken = manual_worker()
    broken.join()
    broken.client.send(0, "failed", {"reason": "out of coffee"})
    run = Run(broken.path)
    wait_for(lambda: any("out of coffee" in record["message"] for record in run.records(kind="note")))


def test_a_port_in_use_is_refused(flat: Dataset, tmp_path: Path, manual_worker: Callable[..., ManualWorker]) -> None:
    taken = manual_worker()
    with pytest.raises(ConfigError, match="cannot listen on"):
        clew.train(
            recipe("line"),
            flat,
            output=tmp_path / "two",
            strategy="easgd",
            workers=0,
            asynchronous={"listen": taken.address},
        )


@pytest.mark.skipif("CLEW_CHAOS" not in os.environ, reason="two minutes: set CLEW_CHAOS=1")
@pytest.mark.timeout(400)
def test_workers_killed_at_random_for_two_minutes(site: Site) -> None:
    kill_workers_at_random(site, seconds=120)


@pytest.mark.long
def test_workers_killed_at_random(site: Site) -> None:
    kill_workers_at_random(site, seconds=10)


def kill_workers_at_random(site: Site, *, seconds: float) -> None:
    """Kill and add workers at random; in the end every batch was counted once."""
    rng = random.Random(5)
    site.master("train.target={metric: loss, value: 0.02, direction: minimize}", "slow=0.005", epochs=10_000)
    workers = [site.worker() for _ in range(3)]
    end = time.monotonic() + seconds
    while time.monotonic() < end and site.run.state != "finished":
        time.sleep(rng.uniform(0.2, 2.0))
        workers.pop(rng.randrange(len(workers))).kill()
        workers += [site.worker() for _ in range(rng.randint(0 if len(workers) > 1 else 1, 2)) if len(workers) < 3]
    if site.run.state != "finished" and not workers:
        site.worker()
    wait_for(lambda: site.run.state == "finished", 2 * seconds + 60)
    last, record = site.run.last("validation"), site.run.last("workers")
    assert last is not None and record is not None
    assert last["metrics"]["loss"] <= 0.02
    assert sum(worker["batches"] for worker in record["workers"].values()) == record["step"]
