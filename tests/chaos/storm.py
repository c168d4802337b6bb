"""A storm: a command is started, struck and started again until it succeeds; then everything is checked."""

from __future__ import annotations

import contextlib
import os
import random
import re
import subprocess
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.chaos.faults import Fault, FlippedByte, Start, Target
from tests.chaos.scenarios import LEFTOVERS, Scenario

_MARK = "CLEW_CHAOS"
"""A variable of every process of a storm, so that those that stay are noticed."""
_TRACKER = re.compile(r"Traceback[^\n]*\n  File \"[^\n]*resource_tracker\.py\"(?:.*\n)+?KeyError.*\n")
"""What Python's own tracker of resources prints when its first process was killed."""
_OTHERS = ("torchinductor", "pymp-")
"""Temporary folders of others: of torch, and of the multiprocessing of a Python that was killed."""
_TIMEOUT = 180.0
_ATTEMPTS = 6


@dataclass
class Outcome:
    """What a storm did, and what is wrong afterwards (nothing, if it was survived)."""

    scenario: str
    fault: str
    seed: int
    strikes: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


@contextlib.contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """A file system of its own, in memory, for as long as the block lasts."""
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "chaos", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
        folder.rmdir()


def run_storm(scenario: Scenario, fault: Fault, seed: int, *, seconds: float, expected: Any) -> Outcome:
    """Run a scenario with two strikes of a fault, then until it succeeds, and check everything.

    Args:
        scenario: What runs. Its folder is a file system of its own.
        fault: What strikes.
        seed: Chooses the moments and the victims.
        seconds: How long the command lasts without faults.
        expected: The result without faults.
    """
    chance = random.Random(f"{scenario.name} {fault.name} {seed}")
    outcome, mark = Outcome(scenario.name, fault.name, seed), uuid.uuid4().hex
    output = ""
    for attempt in range(_ATTEMPTS):
        struck = fault if attempt < 2 else None
        code, output = _attempt(scenario, struck, chance, mark, seconds, outcome)
        _check_output(code, output, outcome)
        if code == 0 or scenario.is_complete():
            break
    else:
        outcome.wrong.append(f"no success in {_ATTEMPTS} attempts: {output[-300:]}")
        return outcome
    _check(scenario, expected, mark, outcome)
    return outcome


def _attempt(
    scenario: Scenario, fault: Fault | None, chance: random.Random, mark: str, seconds: float, outcome: Outcome
) -> tuple[int, str]:
    start = Start({**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200", _MARK: mark})
    temporary = scenario.folder / "tmp"
    temporary.mkdir(exist_ok=True)
    start.environment["TMPDIR"] = str(temporary)
    command = scenario.command()
    log = scenario.inputs / f"{mark}.log"
    if fault is not None:
        fault.start(start, scenario.folder, chance)
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, env=start.environment, stdout=file, stderr=file, start_new_session=True, preexec_fn=start.first
        )
    try:
        if fault is not None:
            target = Target(process, scenario.folder, chance, outcome.strikes)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(chance.uniform(0.05, 0.7) * seconds)
            fault.strike(target)
        code = process.wait(_TIMEOUT)
    except subprocess.TimeoutExpired:
        outcome.wrong.append(f"hangs: {' '.join(command[3:6])}: {log.read_text()[-300:]}")
        code = -1
    finally:
        if fault is not None and not (isinstance(fault, FlippedByte) and scenario.is_complete()):
            fault.end(scenario.folder)  # a finished result is not damaged: nothing would notice
        _end_all(mark, outcome)
    return code, log.read_text()


def _check_output(code: int, output: str, outcome: Outcome) -> None:
    """A command that fails says why in a line, without a traceback; one that was killed says nothing."""
    output = _TRACKER.sub("", output)
    if "Traceback" in output and "MemoryError" not in output:
        outcome.wrong.append(f"a traceback: {output[output.index('Traceback') :][:1500]}")
    if code > 0 and "clew:" not in output and outcome.fault != "memory limit":
        outcome.wrong.append(f"exit code {code} without a message: {output[-300:]}")


def _marked(mark: str) -> list[psutil.Process]:
    marked = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(_MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                marked.append(process)
    return marked


def _end_all(mark: str, outcome: Outcome) -> None:
    """Every process of a command ends by itself, soon after the command."""
    end = time.monotonic() + 60
    while (left := _marked(mark)) and time.monotonic() < end:
        time.sleep(0.1)
    for process in left:
        with contextlib.suppress(psutil.Error):
            outcome.wrong.append(f"a process stays: {' '.join(process.cmdline())[:200]}")
            process.kill()


def _check(scenario: Scenario, expected: Any, mark: str, outcome: Outcome) -> None:
    result = scenario.result()
    if result != expected:
        outcome.wrong.append(f"another result: {str(result)[:300]} instead of {str(expected)[:300]}")
    for pattern in LEFTOVERS:
        outcome.wrong += [f"a temporary file stays: {path}" for path in scenario.folder.rglob(pattern)]
    outcome.wrong += [
        f"a temporary file stays: {path}"
        for path in (scenario.folder / "tmp").rglob("*")
        if not path.is_dir() and not any(part.startswith(_OTHERS) for part in path.parts)
    ]
