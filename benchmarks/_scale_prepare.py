"""How preparing scales on the cores of one machine: the whole command with processes, MPI and dask."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

HERE = Path(__file__).parent
MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
}
"""Open MPI 4 and 5: as root, as many ranks as hardware threads, and no rank bound to a core."""


@dataclass(frozen=True)
class Way:
    """One way to prepare: an executor and a number of processes."""

    executor: str
    processes: int

    def __str__(self) -> str:
        return f"{self.executor}, {self.processes}"


def prepare(way: Way, raw: Path, folder: Path, events: int, limit: float) -> dict[str, Any]:
    """Prepare events from nothing by one whole command. Return its times.

    Raises:
        subprocess.SubprocessError: the command failed, or took longer than `limit` seconds.
    """
    for name in ("dataset", "cache"):
        shutil.rmtree(folder / name, ignore_errors=True)
    phases = folder / "phases.json"
    phases.unlink(missing_ok=True)
    command = [sys.executable, str(HERE / "_prepare_phases.py"), str(phases), "prepare", "tracking"]
    command += ["--input", str(raw), "--output", str(folder / "dataset")]
    environment = {**os.environ, "CLEW_CACHE": str(folder / "cache"), **MPI}
    with contextlib.ExitStack() as stack:
        if way.executor == "mpi":
            command = [*mpiexec(), str(way.processes), *command, "--executor", "mpi"]
        elif way.executor == "dask cluster":
            address = stack.enter_context(dask_cluster(way.processes))
            command += ["--executor", f"dask://{address.removeprefix('tcp://')}", "--workers", str(way.processes)]
        else:
            command += ["--executor", way.executor, "--workers", str(way.processes)]
        before, start = busy(), time.perf_counter()
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL, timeout=limit)
        seconds, after = time.perf_counter() - start, busy()
    result = {"executor": way.executor, "processes": way.processes, "events": events, "seconds": round(seconds, 3)}
    result["core_seconds"] = round(after - before, 2)
    return {**result, "phases": json.loads(phases.read_text())}


def again(raw: Path, folder: Path) -> float:
    """Return the seconds of the command when nothing has changed."""
    command = [sys.executable, "-c", "from clew.cli.main import run; run()", "prepare", "tracking"]
    command += ["--input", str(raw), "--output", str(folder / "dataset")]
    start = time.perf_counter()
    environment = {**os.environ, "CLEW_CACHE": str(folder / "cache")}
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def busy() -> float:
    """Return the seconds for which the cores that this process may use have worked, for all processes."""
    times, cores = psutil.cpu_times(percpu=True), os.sched_getaffinity(0)
    return float(sum(times[core].user + times[core].system for core in cores))


def mpiexec() -> list[str]:
    """Return the command of mpiexec: from the environment of Python if it is there, else of the system."""
    local = Path(sys.executable).parent / "mpiexec"
    return [str(local) if local.exists() else "mpiexec", "-n"]


@contextlib.contextmanager
def dask_cluster(workers: int) -> Iterator[str]:
    """Start a cluster in a process of its own, and give its address."""
    code = "import sys, distributed\nif __name__ == '__main__':\n"
    code += " c = distributed.LocalCluster(n_workers=int(sys.argv[1]), threads_per_worker=1, dashboard_address=None)\n"
    code += " c.wait_for_workers(int(sys.argv[1]))\n print(c.scheduler_address, flush=True)\n sys.stdin.read()\n"
    command = [sys.executable, "-c", code, str(workers)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.communicate("")


def disk_speed(folder: Path, processes: int, megabytes: int = 128) -> tuple[int, float]:
    """Return the number of processes, and the GB/s at which they write to files of a folder, without waiting for the
    disk."""
    code = "import sys\nb = bytes(1 << 20)\nwith open(sys.argv[1], 'wb') as f:\n"
    code += f" for _ in range({megabytes}): f.write(b)\n"
    start = time.perf_counter()
    started = [subprocess.Popen([sys.executable, "-S", "-c", code, str(folder / f"w{n}")]) for n in range(processes)]
    for process in started:
        process.wait()
    seconds = time.perf_counter() - start
    for number in range(processes):
        (folder / f"w{number}").unlink(missing_ok=True)
    return processes, round(processes * megabytes / 1024 / seconds, 2)
