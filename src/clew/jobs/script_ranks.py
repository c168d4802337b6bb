"""Runs a user's own script as the task of a job, on one or several ranks.

The script gets the variables of torchrun (`RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `MASTER_ADDR`, ...) if it has several
ranks, and `CLEW_RUN`, the folder of the run that `clew.distributed` and `clew.log` write. Exit code 75 says that it
stopped early and continues when it is started again in the same folder.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

from clew.jobs.launchers.ranks import RankGroup, free_port
from clew.jobs.rank_info import RankInfo, current_rank, meeting_address
from clew.jobs.supervisor import GRACE, STOPPED
from clew.jobs.task import ScriptTask

RUN_VARIABLE = "CLEW_RUN"
"""The environment variable with the folder of the run that a script writes."""
_LOOK_INTERVAL = 0.1
"""Seconds between two looks at the ranks."""
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


def run(task: ScriptTask, index: int | None = None) -> None:
    """Run a script in place of this process, or its ranks as processes of their own. Does not return.

    Args:
        task: The script.
        index: Not used; every task takes it.
    """
    environment = {**os.environ, RUN_VARIABLE: task.output, "PYTHONUNBUFFERED": "1"}
    words = [*_interpreter(Path(task.script)), task.script, *task.arguments]
    place = current_rank()
    if place.ranks > 1 and place.launcher != "torchrun":
        environment |= _torchrun_variables(place, Path(task.output).absolute().parent)
    if task.workers == 1 or place.ranks > 1:
        os.execvpe(words[0], words, environment)
    raise SystemExit(run_ranks(words, task.workers, environment))


def _torchrun_variables(place: RankInfo, folder: Path) -> dict[str, str]:
    """The variables of torchrun for a rank that srun or mpiexec started; `folder` is one that all ranks see."""
    folder.mkdir(parents=True, exist_ok=True)
    group = RankGroup(place.ranks, *meeting_address(place, folder))
    return group.environment(place.rank, place.local_rank, place.local_ranks)


def _interpreter(script: Path) -> list[str]:
    if script.suffix == ".py":
        return [sys.executable]
    first_line = script.read_text(errors="replace").partition("\n")[0]
    return first_line[2:].split() if first_line.startswith("#!") else ["bash"]


def run_ranks(words: Sequence[str], ranks: int, environment: Mapping[str, str]) -> int:
    """Run a command on several ranks of this machine. If one fails, the others are ended.

    Args:
        words: The command.
        ranks: Number of processes.
        environment: Variables of all of them.

    Returns:
        The exit code: that of the first rank that failed; 75 if one stopped early; else 0.
    """
    group = RankGroup(ranks, "127.0.0.1", free_port())
    processes = [
        subprocess.Popen(words, env={**environment, **group.environment(rank, rank, ranks)}) for rank in range(ranks)
    ]

    def forward(number: int, frame: FrameType | None) -> None:
        for process in processes:
            process.send_signal(number)

    before = {number: signal.signal(number, forward) for number in _STOP_SIGNALS}
    try:
        return _exit_code(_wait(processes))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()


def _wait(processes: Sequence[subprocess.Popen[bytes]]) -> list[int]:
    """Wait for all ranks; after a failure, for the others at most as long as a job may take to stop."""
    failed: list[int] = []
    deadline = float("inf")
    while time.monotonic() < deadline:
        codes = [process.poll() for process in processes]
        if None not in codes:
            break
        if not failed:
            failed = [code for code in codes if code not in (None, 0, STOPPED)]
            if failed:
                deadline = time.monotonic() + GRACE
                for process in processes:
                    process.terminate()
        time.sleep(_LOOK_INTERVAL)
    ended = [process.returncode for process in processes if process.returncode is not None]
    return [*failed, *ended]


def _exit_code(codes: Sequence[int]) -> int:
    failures = [code for code in codes if code not in (0, STOPPED)]
    code = failures[0] if failures else max(codes)
    return 128 - code if code < 0 else code
