"""What Slurm says of jobs: its states in ours, and its reasons in words."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from clew.core import log_tail
from clew.errors import RunError
from clew.jobs.launchers.launcher import JobState
from clew.jobs.sites import Site

STATES: dict[str, JobState] = {
    "PENDING": "waiting",
    "CONFIGURING": "waiting",
    "REQUEUED": "waiting",
    "REQUEUE_FED": "waiting",
    "REQUEUE_HOLD": "waiting",
    "SPECIAL_EXIT": "waiting",
    "RESV_DEL_HOLD": "waiting",
    "RUNNING": "running",
    "COMPLETING": "running",
    "SUSPENDED": "running",
    "STOPPED": "running",
    "SIGNALING": "running",
    "RESIZING": "running",
    "STAGE_OUT": "running",
    "COMPLETED": "finished",
    "FAILED": "failed",
    "CANCELLED": "cancelled",
    "REVOKED": "cancelled",
    "TIMEOUT": "lost",
    "DEADLINE": "lost",
    "PREEMPTED": "lost",
    "NODE_FAIL": "lost",
    "BOOT_FAIL": "lost",
    "OUT_OF_MEMORY": "lost",
}
"""Those of `squeue`. What died by no fault of its own is lost: it can be taken up again."""
_ENDED = {
    "CANCELLED": "cancelled at the scheduler",
    "REVOKED": "cancelled at the scheduler",
    "TIMEOUT": "killed at the end of its wall time",
    "DEADLINE": "killed at its deadline",
    "PREEMPTED": "made to give way to another job",
    "NODE_FAIL": "a node failed under it",
    "BOOT_FAIL": "its nodes did not boot",
    "OUT_OF_MEMORY": "killed for using more memory than it asked for",
}
OVER_MEMORY = _ENDED["OUT_OF_MEMORY"]
_TAIL = 4096
_NEVER = "in vain: as things are"
_REASONS = {
    "Resources": "for free nodes",
    "Priority": "for jobs of higher priority",
    "Dependency": "for another job",
    "BeginTime": "for its time: it was put back",
    "JobHeldUser": "held by you; scontrol release lets it go",
    "JobHeldAdmin": "held by an administrator",
    "launch failed requeued held": "held: it could not be launched; scontrol release tries again",
    "DependencyNeverSatisfied": "what it was to follow did not end well",
    "ReqNodeNotAvail": "the nodes it asks for are not available",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition takes no jobs now",
    "PartitionConfig": f"{_NEVER}, the partition cannot give it so many nodes",
    "PartitionNodeLimit": f"{_NEVER}, the partition does not give so many nodes",
    "PartitionTimeLimit": f"{_NEVER}, the partition does not give so much time",
    "BadConstraints": f"{_NEVER}, no node is as it asks for",
    "InvalidAccount": f"{_NEVER}, the account is not known",
    "InvalidQOS": f"{_NEVER}, the quality of service is not known",
}
_FULL = ("QOS", "Assoc", "MaxJob", "MaxSubmit", "JobArrayTaskLimit")
"""Beginnings of reasons that are limits of a user, a group or a quality of service."""


@dataclass(frozen=True)
class SlurmRow:
    """One job, or one of an array."""

    job: str
    state: str
    reason: str
    nodes: str

    def words(self) -> str:
        """What there is to say."""
        ours = STATES.get(self.state, "running")
        if ours == "waiting":
            return _why(self.reason)
        if ours == "running":
            return f"on {self.nodes}" if self.nodes else ""
        if self.state == "CANCELLED" and self.reason == "DependencyNeverSatisfied":
            return f"never began: {_REASONS[self.reason]}"
        return _ENDED.get(self.state, "")


def _why(reason: str) -> str:
    if reason in ("None", ""):
        return ""
    if reason.startswith(_FULL):
        return f"for room: a limit is reached ({reason})"
    return _REASONS.get(reason.partition(",")[0], f"({reason})")


@dataclass
class SlurmQueue:
    """All jobs of this user, asked for at most every so often: many who look cost one question."""

    rows: dict[str, list[SlurmRow]] = field(default_factory=dict)
    asked: float = float("-inf")
    silent: str = ""
    """What Slurm's commands said when they last did not answer; '' when they did."""

    def of(self, job: str, pause: float) -> list[SlurmRow]:
        """The rows of a job; none where Slurm knows it no more."""
        if time.monotonic() - self.asked >= pause:
            self.refresh()
        return self.rows.get(job, [])

    def refresh(self) -> None:
        """Ask now. Where Slurm does not answer, what it said last stays true."""
        done = call(
            ["squeue", "--noheader", "--array", "--states=all", f"--user={os.geteuid()}", "--format=%F|%T|%r|%N"],
            most=20,
        )
        self.asked = time.monotonic()
        self.silent = "" if done.returncode == 0 else last_line(done.stderr)
        if done.returncode:
            return
        self.rows = {}
        for line in done.stdout.splitlines():
            job, state, reason, nodes = (line.split("|", 3) + [""] * 3)[:4]
            self.rows.setdefault(job, []).append(SlurmRow(job, state, reason, nodes))


@dataclass(frozen=True)
class SiteCapacity:
    """What the nodes of a partition have together."""

    count: int
    cpus: int
    gpus: int
    memory: int
    """Bytes."""

    @classmethod
    def of(cls, site: Site) -> SiteCapacity:
        """As Slurm has it.

        Raises:
            RunError: it does not answer.
        """
        where = [] if site.partition is None else [f"--partition={site.partition}"]
        done = call(["sinfo", "--noheader", "--Node", "--format=%N|%c|%m|%G", *where], most=20)
        if done.returncode:
            raise RunError(f"{site.name}: Slurm does not answer ({last_line(done.stderr)}); is this a login node?")
        cells = [line.strip().split("|") for line in sorted(set(done.stdout.splitlines()))]
        gpus = sum(int(number) for *_, given in cells for number in re.findall(r"gpu(?::[^:,(]+)?:(\d+)", given))
        cpus, mebibytes = (sum(int(each[column].rstrip("+")) for each in cells) for column in (1, 2))
        return cls(len(cells), cpus, gpus, mebibytes * 2**20)


def accounted(job: str) -> list[SlurmRow]:
    """What the accounting remembers of a job that the controller forgot; nothing where there is no accounting."""
    done = call(["sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={job}", "--format=State,NodeList"])
    if done.returncode:
        return []
    cells = [line.split("|") for line in done.stdout.splitlines() if "|" in line]
    return [SlurmRow(job, state.split()[0], "", nodes) for state, nodes, *_ in cells if state.split()]


def over_memory(log: Path) -> bool:
    """Whether a job's output ends with Slurm's word that it took too much memory: a Slurm that measures by accounting
    and not by cgroups has no state for it."""
    if not log.is_file():
        return False
    with log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - _TAIL))
        return b"exceeded memory limit" in stream.read()


def call(
    words: Sequence[str], *, most: float = 60, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command of Slurm's; one that is not there, or hangs, is one that failed."""
    try:
        return subprocess.run(words, capture_output=True, text=True, timeout=most, check=False, env=environment)
    except FileNotFoundError:
        return subprocess.CompletedProcess(words, 127, "", f"{words[0]}: no such command here; is this a login node?")
    except subprocess.TimeoutExpired as error:
        told = error.stderr.decode() if isinstance(error.stderr, bytes) else error.stderr
        return subprocess.CompletedProcess(words, 124, "", told or f"{words[0]} did not answer in {most:g} s")


def last_line(text: str) -> str:
    """The last line that a command printed, without its name in front."""
    line = log_tail.last_line(text)
    return line.partition("error: ")[2] or line
