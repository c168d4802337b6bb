"""The agent: asks a server for jobs, has them done, tells of them. It and the server may be killed at any moment."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from clew.client.agent_messages import Answer, Introduction, Kept, Known, Load, Poll, Size
from clew.client.connection import Link
from clew.client.job import Result
from clew.errors import ServerError
from clew.jobs.agent import commands
from clew.jobs.agent.completion import finish
from clew.jobs.agent.folder import AgentFolder
from clew.jobs.agent.job_list import AgentJob, Command, JobList
from clew.jobs.agent.runner import Local, Runner

_LOOK = 0.2
"""Seconds between two looks at jobs."""
_WAIT = 20.0
"""Seconds that the server may keep us waiting for work: every poll is a sign of life."""
_PIECE = 500_000
_STUBBORN = 120.0
"""Seconds for which a server's failure to take what a job made is tried again."""
_SLOWEST = 5.0
"""Seconds between two tries to reach a server that is away."""


@dataclass
class _Told:
    """What the server knows of an attempt."""

    running: bool = False
    queued: str | None = None
    """Why a scheduler has not begun it."""
    log: int | None = None
    """Bytes of it; None before it was asked."""
    finished: bool = False
    """Whether its records and artefacts are there, or cannot be."""
    since: float = math.inf
    """When it was first tried to send them."""
    missing: str = ""
    """Why not all of it is there."""


@dataclass
class Agent:
    """One agent, on one machine, for one server."""

    link: Link
    folder: AgentFolder
    introduction: Introduction
    runner: Runner = field(default_factory=Local)
    command: Command = commands.command
    """What is run for a job."""
    idle: float | None = None
    """Seconds without a job after which it leaves; None: never."""
    tell: Callable[[str], None] = print
    stopping: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._work = JobList(
            self.folder,
            self.runner,
            self.introduction.slots,
            environment={"CLEW_SERVER": self.link.server},
            command=self.command,
        )
        self._told: dict[tuple[int, int], _Told] = {}
        self._lock = threading.RLock()
        self._number = 0
        self._failed: Exception | None = None
        self._busy = time.monotonic()

    def run(self) -> None:
        """Until `stopping` is set, it has been idle for long, or its token is no longer good. Jobs go on without it.

        Raises:
            ServerError: the server does not want it.
            RunError: another agent has the folder.
        """
        with self.folder.held():
            with self._lock:
                for order in self._work.adopt():
                    self.tell(f"job {order.job} is found again: {order.kind} {order.name}")
            self._introduce()
            asking = threading.Thread(target=self._ask, name="ask", daemon=True)
            asking.start()
            while not self.stopping.is_set() and not self._bored():
                self._look()
                self.stopping.wait(_LOOK)
            self.stopping.set()
        if self._failed is not None:
            raise self._failed

    def _bored(self) -> bool:
        if len(self._work) or self.idle is None:
            self._busy = time.monotonic()
            return False
        return time.monotonic() - self._busy > self.idle

    def _introduce(self) -> None:
        def work() -> None:
            told = self.link.call("POST", "/agents", body=self.introduction.model_dump(mode="json"))
            self._number = Known.model_validate(told).id
            self.tell(f"agent {self.introduction.name} serves {self.link.server}")

        self._patiently(work)

    def _patiently(self, work: Callable[[], None]) -> None:
        """Do it, however long the server is away."""
        pause, said = 0.2, False
        while not self.stopping.is_set():
            try:
                return work()
            except ServerError as error:
                if error.status and error.status < 500 and error.status != 429:
                    raise
                if not said:
                    said = True
                    self.tell(f"{error} Jobs go on meanwhile.")
            self.stopping.wait(pause)
            pause = min(2 * pause, _SLOWEST)
        return None

    def _ask(self) -> None:
        """The thread that asks for work, and takes it."""
        try:
            while not self.stopping.is_set():
                self._patiently(self._poll)
        except Exception as error:  # whatever it was, `run` raises it
            self._failed = error
            self.stopping.set()

    def _poll(self) -> None:
        with self._lock:
            held = tuple(self._work.held())
        load = Load(cpu=psutil.cpu_percent(), memory=psutil.virtual_memory().percent)
        body = Poll(held=held, load=load, wait=_WAIT).model_dump(mode="json")
        try:
            told = self.link.call("POST", f"/agents/{self._number}/poll", body=body, timeout=_WAIT + 20)
        except ServerError as error:
            if error.status == 404:  # a server that has forgotten us
                return self._introduce()
            raise
        self._obey(Answer.model_validate(told))
        return None

    def _obey(self, answer: Answer) -> None:
        with self._lock:
            for job in answer.drop:  # before the orders: one may be for the next attempt at it
                self._drop(job)
            for order in answer.orders:
                self.tell(f"job {order.job} begins: {order.kind} {order.name}")
                self._work.take(order)
            for job in answer.cancel:
                self._work.cancel(job)
        if answer.cancel and not answer.orders:
            self.stopping.wait(1)  # told at once again, until they have ended

    def _drop(self, job: int, attempt: int | None = None) -> None:
        with self._lock:
            if self._work.drop(job, attempt):
                self.tell(f"job {job} is not this agent's any more, and was ended")

    def _look(self) -> None:
        """Tell the server what is new; what it does not hear now it hears next time."""
        with self._lock:
            found = list(self._work.look())
            held = {(each.job, each.attempt) for each in self._work.held()}
            self._told = {key: known for key, known in self._told.items() if key in held}
        for working, result in found:
            with contextlib.suppress(ServerError):
                self._tell_of(working, result)

    def _tell_of(self, working: AgentJob, result: Result) -> None:
        job, attempt = working.order.job, working.order.attempt
        known = self._told.setdefault((job, attempt), _Told())
        try:
            self._ship_log(working, known)
            if result.state == "queued":
                if result.reason != known.queued and self._report(job, result):
                    known.queued = result.reason
                return
            if result.state == "running":
                if not known.running:
                    known.running = self._report(job, result)
                return
            if result.state == "ended" and not known.finished:
                self._finish(working, known)
            result = result.model_copy(
                update={"reason": "; ".join(filter(None, (result.reason, known.missing)))[:1000]}
            )
            if self._report(job, result):
                self.tell(f"job {job} has ended: {_words(result)}")
                with self._lock:
                    self._work.told(job, attempt)
        except ServerError as error:
            if error.status in (404, 409):
                self._drop(job, attempt)
            raise

    def _finish(self, working: AgentJob, known: _Told) -> None:
        """Send what it made; a server that answers and cannot take it does not hold up the job's end for ever."""
        known.since = min(known.since, time.monotonic())
        try:
            known.missing = finish(working.order, self.folder, self.link.server)
        except ServerError as error:
            if not error.status or time.monotonic() - known.since < _STUBBORN:
                raise
            known.missing = f"not everything could be stored: {error}"
        if known.missing:
            self.tell(f"job {working.order.job}: {known.missing}")
        known.finished = True

    def _report(self, job: int, result: Result) -> bool:
        """Whether it was heard; a job that is no longer ours is dropped."""
        told = self.link.call("POST", f"/agents/{self._number}/jobs/{job}", body=result.model_dump(mode="json"))
        if Kept.model_validate(told).kept:
            return True
        self._drop(job, result.attempt)
        return False

    def _ship_log(self, working: AgentJob, known: _Told) -> None:
        size = working.log.stat().st_size if working.log.exists() else 0
        path = f"/agents/{self._number}/jobs/{working.order.job}/log"
        while known.log is None or known.log < size:
            data = _read(working.log, known.log or 0)
            asked = {"attempt": working.order.attempt, "offset": known.log or 0}
            told = Size.model_validate(self.link.call("POST", path, content=data, params=asked)).size
            if told == known.log:
                return  # it takes no more
            known.log = told


def _read(log: Path, begin: int) -> bytes:
    if not log.exists():
        return b""
    with log.open("rb") as stream:
        stream.seek(begin)
        return stream.read(_PIECE)


def _words(result: Result) -> str:
    if result.state == "lost":
        return result.reason
    return "done" if result.code == 0 else f"exit code {result.code}{': ' + result.reason if result.reason else ''}"
