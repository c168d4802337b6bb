"""Workers come, go, hang and lie while a training goes on; the master is killed and comes back."""

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
from clew.training.asynchronous.flat_model import Vector, fingerprint
from clew.training.asynchronous.messaging.tcp import Client, Token
from clew.version import __version__
from tests.training import RECIPES, recipe

pytestmark = pytest.mark.timeout(150)

CLEW = [sys.executable, "-c", "from clew.cli.main import run; run()"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}


class Site:
    """A run that listens, and the processes around it; all are gone at the end of a test."""

    def __init__(self, flat: Dataset, folder: Path) -> None:
        self.flat, self.path = flat, folder / "run"
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        with self.log(len(self.processes)).open("w") as log:
            made = subprocess.Popen([*CLEW, *arguments], env=ENVIRONMENT, stdout=log, stderr=log)
        self.processes.append(made)
        return made

    def log(self, number: int) -> Path:
        return self.path.with_name(f"log-{number}")

    def said(self, process: subprocess.Popen[bytes]) -> str:
        return self.log(self.processes.index(process)).read_text()

    def joined(self, count: int) -> None:
        wait_for(lambda: self.notes().count("joined") >= count)

    def master(self, *more: str, epochs: int = 20) -> subprocess.Popen[bytes]:
        settings = ["train.batch_size=8", "train.optimizer.lr=0.01", "slow=0.02", *more]
        return self.start(
            *["train", str(RECIPES / "line.py"), "--dataset", str(self.flat.path), "--output", str(self.path)],
            *["--strategy", "downpour", "--listen", "127.0.0.1:0", "--workers", "0", "--epochs", str(epochs)],
            *(word for setting in settings for word in ("--set", setting)),
        )

    def worker(self, *more: str) -> subprocess.Popen[bytes]:
        wait_for(self.run.address_file.exists)
        address = self.run.address_file.read_text()
        return self.start("worker", address, "--token-file", str(self.run.token_file), "--patience", "60s", *more)

    @property
    def run(self) -> Run:
        return Run(self.path)

    def step(self) -> int:
        record = self.run.last("step") if self.run.records_folder.exists() else None
        return int(record["step"]) if record else 0

    def finished(self, epochs: int = 20) -> dict[str, Any]:
        """The end: every batch done, all samples seen, nothing skipped."""
        wait_for(lambda: self.run.state == "finished", 100)
        last, told = self.run.last("step"), self.run.last("workers")
        assert last is not None and told is not None
        assert last["samples"] == epochs * self.flat.splits["train"]
        assert {record["epoch"] for record in self.run.records(kind="validation")} == set(range(epochs))
        return told

    def notes(self) -> str:
        if not self.run.records_folder.exists():
            return ""
        return "\n".join(record["message"] for record in self.run.records(kind="note"))


@pytest.fixture
def site(flat: Dataset, tmp_path: Path) -> Iterator[Site]:
    made = Site(flat, tmp_path)
    yield made
    for process in made.processes:
        process.kill()
        process.wait()


def wait_for(happens: Callable[[], Any], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


def test_workers_are_killed_and_others_take_over(site: Site) -> None:
    master = site.master(epochs=40)
    first, second = site.worker(), site.worker()
    site.joined(2)
    before = site.step()
    wait_for(lambda: site.step() > before + 10)
    first.send_signal(signal.SIGKILL)
    site.worker()
    told = site.finished(40)
    assert master.wait(20) == 0
    assert second.wait(20) == 0
    assert "batches were learned from here" in site.said(second)
    assert told["returned"] > 0
    assert "no sign of life" in site.notes()


def test_a_master_that_is_killed_resumes_and_its_worker_finds_it_again(site: Site) -> None:
    master = site.master("train.central.staleness=4", "train.checkpoint_minutes=0.01")
    worker = site.worker()
    wait_for(lambda: site.step() > 60)
    master.send_signal(signal.SIGKILL)
    master.wait()
    again = site.start("train", "--resume", str(site.path))
    site.finished()
    assert again.wait(20) == 0
    assert worker.wait(20) == 0
    assert "looking for the master" in site.said(worker)


def test_a_wrong_token_gets_one_line_and_exit_code_2(site: Site) -> None:
    site.master()
    wait_for(site.run.address_file.exists)
    address = site.run.address_file.read_text()
    done = subprocess.run(
        [*CLEW, "worker", address, "--token", "guess"], env=ENVIRONMENT, text=True, capture_output=True, timeout=60
    )
    assert done.returncode == 2
    assert done.stderr.strip().splitlines() == ["clew: the master refused this worker: the token is wrong"]
    assert oct(site.run.token_file.stat().st_mode)[-3:] == "600"


def test_nobody_is_there(site: Site) -> None:
    done = site.start("worker", "127.0.0.1:9", "--token", "guess", "--patience", "1s")
    assert done.wait(60) == 2
    assert "no master at 127.0.0.1:9 answered in 1 s" in site.said(done)


class Stranger:
    """A worker made by hand, against a master in a thread of this process."""

    def __init__(self, flat: Dataset, folder: Path, **central: Any) -> None:
        self.path, self.error = folder / "run", None
        settings: dict[str, Any] = {"epochs": 3, "batch_size": 8, "threads": 1, "workers": 0, "strategy": "downpour"}

        def train() -> None:
            listening = {"listen": "127.0.0.1:0", **central}
            try:
                clew.train(recipe("line"), flat, output=self.path, central=listening, **settings)
            except Exception as error:
                self.error = error

        self.thread = threading.Thread(target=train, daemon=True)
        self.thread.start()
        self.client = Client()
        run = Run(self.path)
        wait_for(run.address_file.exists)
        self.address, self.token = run.address_file.read_text(), Token.parse(run.token_file.read_text().split()[0])
        self.client.connect(0, self.address, self.token)

    def say(self, kind: str, facts: dict[str, Any], tensor: torch.Tensor | None = None) -> Any:
        self.client.send(0, kind, facts, tensor)
        message = self.client.receive(10)
        assert message is not None
        return message

    def joined(self) -> list[int]:
        """Say hello, and take a lease."""
        welcome = self.say("hello", {"clew": __version__})
        self.client.here = welcome.facts["number"]
        self.client.watch(self.address, self.token)
        self.say("ready", {"model": fingerprint(recipe("line").model())})
        told = self.say("report", report())
        lease: list[int] = told.facts["lease"]
        return lease


def report(done: Any = ()) -> dict[str, Any]:
    times = {"seconds": 0.1, "wait": 0.0, "communicate": 0.0}
    return {"done": list(done), "losses": {}, "samples": 0, "workers": 1, "want": True, "version": 0, **times}


@pytest.fixture
def stranger(flat: Dataset, tmp_path: Path) -> Iterator[Callable[..., Stranger]]:
    made: list[Stranger] = []

    def make(**central: Any) -> Stranger:
        made.append(Stranger(flat, tmp_path, **central))
        return made[0]

    yield make
    for each in made:
        each.client.close()
        if each.thread.is_alive():  # somebody does the work
            helper = subprocess.Popen(
                [*CLEW, "worker", each.address, "--token", str(each.token)], env=ENVIRONMENT, stdout=subprocess.DEVNULL
            )
            each.thread.join(60)
            helper.wait(20)
        assert not each.thread.is_alive()


def test_another_version_is_refused(stranger: Callable[..., Stranger]) -> None:
    answer = stranger().say("hello", {"clew": "0.0.1"})
    assert answer.kind == "refused"
    assert "runs clew 0.0.1" in answer.facts["why"]


def test_another_model_is_refused(stranger: Callable[..., Stranger]) -> None:
    other = stranger()
    other.say("hello", {"clew": __version__})
    answer = other.say("ready", {"model": fingerprint(torch.nn.Linear(2, 2))})
    assert answer.kind == "refused"
    assert "another model" in answer.facts["why"]


def test_a_worker_that_hangs_loses_its_lease(stranger: Callable[..., Stranger], flat: Dataset) -> None:
    hanging = stranger(lease_seconds=1.0)
    lease = hanging.joined()
    assert lease[3] > lease[2]
    run = Run(hanging.path)
    wait_for(lambda: any("no progress in 1 s" in record["message"] for record in run.records(kind="note")))
    with pytest.raises(LostPeerError, match="does not know"):
        hanging.say("report", report())


def test_an_update_that_is_not_finite_is_refused_and_its_sender_named(stranger: Callable[..., Stranger]) -> None:
    liar = stranger()
    lease = liar.joined()
    update = torch.full((Vector(recipe("line").model()).length,), float("nan"))
    answer = liar.say("push", report([[lease[0], 1]]), update)
    assert answer.facts["void"] and torch.isfinite(answer.tensor).all()
    told = liar.say("report", report())
    liar.client.send(0, "push", report([[told.facts["lease"][0], 1]]), update)
    liar.thread.join(30)
    assert isinstance(liar.error, RunError)
    assert "worker 1" in str(liar.error) and "not finite" in str(liar.error)


def test_a_worker_that_cannot_go_on_says_why_and_others_do(stranger: Callable[..., Stranger]) -> None:
    broken = stranger()
    broken.joined()
    broken.client.send(0, "failed", {"why": "out of coffee"})
    run = Run(broken.path)
    wait_for(lambda: any("out of coffee" in record["message"] for record in run.records(kind="note")))


def test_a_port_in_use(flat: Dataset, tmp_path: Path, stranger: Callable[..., Stranger]) -> None:
    taken = stranger()
    with pytest.raises(ConfigError, match="cannot listen on"):
        clew.train(
            recipe("line"),
            flat,
            output=tmp_path / "two",
            strategy="easgd",
            workers=0,
            central={"listen": taken.address},
        )


@pytest.mark.skipif("CLEW_CHAOS" not in os.environ, reason="two minutes: set CLEW_CHAOS=1")
@pytest.mark.timeout(400)
def test_chaos(site: Site) -> None:
    chaos(site, seconds=120)


def test_a_little_chaos(site: Site) -> None:
    chaos(site, seconds=10)


def chaos(site: Site, *, seconds: float) -> None:
    """Kill and add workers at random for a while; every lease is accounted for in the end."""
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
    last, told = site.run.last("validation"), site.run.last("workers")
    assert last is not None and told is not None
    assert last["metrics"]["loss"] <= 0.02
    assert sum(each["batches"] for each in told["workers"].values()) == told["step"]
