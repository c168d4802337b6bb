"""What Slurm reports about jobs: its states as the states of clew, and its reasons in words."""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass, field
from pathlib import Path

from clew.errors import RunError
from clew.jobs.launchers.launcher import JobState
from clew.jobs.launchers.scheduler import call, last_line
from clew.jobs.sites import Site, SiteCapacity

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
"""States of `squeue`. A job that was ended by a cause outside of it is lost: it can be resumed."""
_ENDED = {
    "CANCELLED": "cancelled at the scheduler",
    "REVOKED": "cancelled at the scheduler",
    "TIMEOUT": "killed at the end of its wall time",
    "DEADLINE": "killed at its deadline",
    "PREEMPTED": "preempted by another job",
    "NODE_FAIL": "a node failed under it",
    "BOOT_FAIL": "its nodes did not boot",
    "OUT_OF_MEMORY": "killed because it used more memory than it requested",
}
OUT_OF_MEMORY = _ENDED["OUT_OF_MEMORY"]
_TAIL_BYTES = 4096
_NEVER = "in vain"
_REASONS = {
    "Resources": "for free nodes",
    "Priority": "for jobs of higher priority",
    "Dependency": "for another job",
    "BeginTime": "for its begin time: it was requeued",
    "JobHeldUser": "held by you; scontrol release starts it",
    "JobHeldAdmin": "held by an administrator",
    "launch failed requeued held": "held: it could not be launched; scontrol release tries again",
    "DependencyNeverSatisfied": "a job that it depends on did not succeed",
    "ReqNodeNotAvail": "the nodes it requested are not available",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition accepts no jobs now",
    "PartitionConfig": f"{_NEVER}: the partition does not have as many nodes",
    "PartitionNodeLimit": f"{_NEVER}: the partition does not allow as many nodes",
    "PartitionTimeLimit": f"{_NEVER}: the partition does not allow as much time",
    "BadConstraints": f"{_NEVER}: no node meets its constraints",
    "InvalidAccount": f"{_NEVER}: the account is unknown",
    "InvalidQOS": f"{_NEVER}: the quality of service is unknown",
}
_LIMITS = ("QOS", "Assoc", "MaxJob", "MaxSubmit", "JobArrayTaskLimit")
"""Prefixes of reasons that are limits of a user, a group or a quality of service."""


@dataclass(frozen=True)
class SlurmRow:
    """One job, or one of an array."""

    job: str
    state: str
    reason: str
    nodes: str

    def words(self) -> str:
        """The row in words: why the job waits, where it runs, or how it ended."""
        state = STATES.get(self.state, "running")
        if state == "waiting":
            return _waiting_reason(self.reason)
        if state == "running":
            return f"on {self.nodes}" if self.nodes else ""
        if self.state == "CANCELLED" and self.reason == "DependencyNeverSatisfied":
            return f"never started: {_REASONS[self.reason]}"
        return _ENDED.get(self.state, "")


def _waiting_reason(reason: str) -> str:
    if reason in ("None", ""):
        return ""
    if reason.startswith(_LIMITS):
        return f"because a limit is reached ({reason})"
    return _REASONS.get(reason.partition(",")[0], f"({reason})")


@dataclass
class SlurmQueue:
    """All jobs of this user. Slurm is asked at most once per interval, however many jobs are looked up."""

    rows: dict[str, list[SlurmRow]] = field(default_factory=dict)
    updated: float = float("-inf")
    silence: str = ""
    """The message of Slurm's commands when they last did not answer; '' when they did."""

    def rows_of(self, job: str, interval: float) -> list[SlurmRow]:
        """The rows of a job, at most `interval` seconds old; none where Slurm does not know it any more."""
        if time.monotonic() - self.updated >= interval:
            self.update()
        return self.rows.get(job, [])

    def expire(self) -> None:
        """Ask Slurm again at the next look."""
        self.updated = float("-inf")

    def update(self) -> None:
        """Ask Slurm now. If it does not answer, its last answer stays."""
        done = call(
            ["squeue", "--noheader", "--array", "--states=all", f"--user={os.geteuid()}", "--format=%F|%T|%r|%N"],
            timeout=20,
        )
        self.updated = time.monotonic()
        self.silence = "" if done.returncode == 0 else last_line(done.stderr)
        if done.returncode:
            return
        self.rows = {}
        for line in done.stdout.splitlines():
            job, state, reason, nodes = (line.split("|", 3) + [""] * 3)[:4]
            self.rows.setdefault(job, []).append(SlurmRow(job, state, reason, nodes))


def sinfo(site: Site) -> SiteCapacity:
    """What the nodes of a site's partition have together.

    Raises:
        RunError: Slurm does not answer.
    """
    partition = [] if site.partition is None else [f"--partition={site.partition}"]
    done = call(["sinfo", "--noheader", "--Node", "--format=%N|%c|%m|%G", *partition], timeout=20)
    if done.returncode:
        raise RunError(f"{site.name}: Slurm does not answer ({last_line(done.stderr)}); is this a login node?")
    cells = [line.strip().split("|") for line in sorted(set(done.stdout.splitlines()))]
    gpus = sum(int(number) for *_, gres in cells for number in re.findall(r"gpu(?::[^:,(]+)?:(\d+)", gres))
    cpus, mebibytes = (sum(int(row[column].rstrip("+")) for row in cells) for column in (1, 2))
    return SiteCapacity(nodes=len(cells), cpus=cpus, gpus=gpus, memory=mebibytes * 2**20)


def accounted(job: str) -> list[SlurmRow]:
    """The rows of a job that the controller has forgotten, from the accounting; none where there is no accounting."""
    done = call(["sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={job}", "--format=State,NodeList"])
    if done.returncode:
        return []
    cells = [line.split("|") for line in done.stdout.splitlines() if "|" in line]
    return [SlurmRow(job, state.split()[0], "", nodes) for state, nodes, *_ in cells if state.split()]


def over_memory(log: Path) -> bool:
    """Whether a job's output ends with Slurm's message that it used too much memory.

    A Slurm that measures memory by accounting and not by cgroups has no state for this.
    """
    if not log.is_file():
        return False
    with log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - _TAIL_BYTES))
        return b"exceeded memory limit" in stream.read()
