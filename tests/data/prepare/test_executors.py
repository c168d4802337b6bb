"""Any executor gives the same bytes, also if workers or the whole command are killed."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

import clew
from clew.data.prepare.stage_cache import BusyError, StageCache
from clew.errors import ConfigError, WorkerError
from tests.data.prepare.conftest import SLOW, fingerprint, slow

CLEW = str(Path(sys.executable).parent / "clew")
MPIEXEC = shutil.which("mpiexec", path=str(Path(sys.executable).parent)) or shutil.which("mpiexec")


def _command(numbers: Path, output: Path, *more: str) -> list[str]:
    return [CLEW, "prepare", SLOW, "--input", str(numbers), "--output", str(output), *more]


@pytest.fixture
def expected(numbers: Path, tmp_path: Path) -> dict[str, str]:
    """The dataset that one process makes of the numbers."""
    output = tmp_path / "expected"
    cache = str(tmp_path / "other cache")
    return fingerprint(clew.prepare(slow(), input=[str(numbers)], output=str(output), cache=cache, workers=1).path)


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("executor", ["processes", "threads", "dask"])
def test_every_executor_gives_the_same_bytes(
    numbers: Path, cache: Path, tmp_path: Path, expected: dict[str, str], executor: str
) -> None:
    if executor == "dask":
        pytest.importorskip("distributed", reason="the extra `dask` is not installed")
    dataset = clew.prepare(slow(), input=[str(numbers)], output=str(tmp_path / "d"), workers=2, executor=executor)
    assert fingerprint(dataset.path) == expected


@pytest.mark.slow
def test_a_user_defined_executor(numbers: Path, cache: Path, tmp_path: Path, expected: dict[str, str]) -> None:
    with ThreadPoolExecutor(2) as pool:
        dataset = clew.prepare(slow(), input=[str(numbers)], output=str(tmp_path / "d"), executor=pool)
    assert fingerprint(dataset.path) == expected


@pytest.mark.long
@pytest.mark.timeout(120)
@pytest.mark.skipif(MPIEXEC is None, reason="no mpiexec: the extra `mpi` is not installed")
def test_mpi_cold_and_warm(numbers: Path, cache: Path, tmp_path: Path, expected: dict[str, str]) -> None:
    for _ in range(2):
        command = [str(MPIEXEC), "-n", "3", *_command(numbers, tmp_path / "d")]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        assert fingerprint(tmp_path / "d") == expected


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_dask_scheduler_by_address_cold_and_warm(
    numbers: Path, cache: Path, tmp_path: Path, expected: dict[str, str]
) -> None:
    distributed = pytest.importorskip("distributed", reason="the extra `dask` is not installed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None, host="127.0.0.1"
    ) as cluster:
        address = cluster.scheduler_address.replace("tcp://", "dask://")
        for _ in range(2):
            dataset = clew.prepare(slow(), input=[str(numbers)], output=str(tmp_path / "d"), executor=address)
            assert fingerprint(dataset.path) == expected


@pytest.mark.timeout(120)
@pytest.mark.skipif(MPIEXEC is None, reason="no mpiexec: the extra `mpi` is not installed")
def test_under_mpi_one_rank_reports_a_mistake_for_all(tmp_path: Path) -> None:
    command = [str(MPIEXEC), "-n", "3", *_command(tmp_path / "missing.txt", tmp_path / "d")]
    outcome = subprocess.run(command, check=False, capture_output=True, text=True, timeout=100)
    assert (outcome.returncode, outcome.stderr.count("clew:")) == (2, 1)
    assert "no input file matches" in outcome.stderr


@pytest.mark.timeout(120)
@pytest.mark.parametrize("executor", ["dask", "mpi"])
def test_workers_of_one_host_are_known_to_share_it(executor: str) -> None:
    """So that all of them write to all shards."""
    code = "from clew.data.prepare.executors import TaskQueue, executor_factory\n"
    code += "if __name__ == '__main__':\n with TaskQueue(*executor_factory('NAME', 2)) as queue:\n"
    code += "  print('served' if queue.serves else queue.is_one_host)\n"
    command = [sys.executable, "-c", code.replace("NAME", executor)]
    if executor == "mpi":
        if MPIEXEC is None:
            pytest.skip("no mpiexec: the extra `mpi` is not installed")
        command = [str(MPIEXEC), "-n", "2", *command]
    else:
        pytest.importorskip("distributed", reason="the extra `dask` is not installed")
    outcome = subprocess.run(command, check=True, capture_output=True, text=True, timeout=100)
    assert sorted(outcome.stdout.split()) == (["True", "served"] if executor == "mpi" else ["True"])


def test_an_unknown_executor_suggests_the_nearest(numbers: Path, cache: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'processes'"):
        clew.prepare(slow(), input=[str(numbers)], executor="proceses")


@pytest.mark.long
@pytest.mark.exec
@pytest.mark.timeout(180)
def test_workers_killed_at_random_moments_change_nothing(
    numbers: Path, cache: Path, tmp_path: Path, expected: dict[str, str]
) -> None:
    rng, kills = random.Random(1), 0
    while kills < 20:
        shutil.rmtree(cache, ignore_errors=True)
        shutil.rmtree(tmp_path / "d", ignore_errors=True)
        process = subprocess.Popen(_command(numbers, tmp_path / "d", "--workers", "2"), stdout=subprocess.DEVNULL)
        done_before = 0
        while process.poll() is None:
            time.sleep(rng.uniform(0.02, 0.3))
            done = len(list(cache.glob("prepare/*/*.table")))
            if done > done_before:  # a machine too busy to finish a piece between two kills would never finish
                kills += _kill_a_worker(process.pid, rng)
            done_before = done
        assert process.returncode == 0
        assert fingerprint(tmp_path / "d") == expected
        assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def _kill_a_worker(pid: int, rng: random.Random) -> int:
    """Kill one of the processes that a forkserver started for a command; return how many there were."""
    try:
        family = psutil.Process(pid).children(recursive=True)
        workers = [child for child in family if child.ppid() != pid]
        if not workers:
            return 0
        rng.choice(workers).send_signal(signal.SIGKILL)
    except psutil.Error:
        return 0
    return 1


@pytest.mark.long
@pytest.mark.exec
@pytest.mark.timeout(120)
def test_the_whole_command_killed_again_and_again_continues_where_it_was(
    numbers: Path, cache: Path, tmp_path: Path, expected: dict[str, str]
) -> None:
    log = tmp_path / "log"
    options = ["--workers", "2", "--set", f"log={log}"]
    for _ in range(4):
        process = subprocess.Popen(_command(numbers, tmp_path / "d", *options), start_new_session=True)
        time.sleep(1.2)
        for each in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
            each.kill()
        process.wait()
    done = len(log.read_text().splitlines()) if log.exists() else 0
    subprocess.run(_command(numbers, tmp_path / "d", *options), check=True, capture_output=True)
    pieces = len(list(cache.glob("prepare/*/*.table")))
    assert len(log.read_text().splitlines()) <= pieces + 4 * 2
    assert done >= 0
    table = clew.Dataset(tmp_path / "d")
    table.verify()
    assert [path.name for path in tmp_path.iterdir() if ".partial" in path.name] == []


def test_workers_end_with_a_command_that_was_killed(numbers: Path, cache: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(_command(numbers, tmp_path / "d", "--workers", "2"), start_new_session=True)
    children: list[psutil.Process] = []
    deadline = time.monotonic() + 30
    while (
        len(children) < 4 and process.poll() is None and time.monotonic() < deadline
    ):  # the pool's server, a tracker, two
        children = psutil.Process(process.pid).children(recursive=True)
        time.sleep(0.02)
    process.kill()
    process.wait()
    _, left = psutil.wait_procs(children, timeout=30)
    assert len(children) >= 4 and not left


@pytest.mark.timeout(60)
def test_a_piece_that_kills_its_worker_is_named(numbers: Path, cache: Path, tmp_path: Path) -> None:
    with pytest.raises(WorkerError, match=r"died 3 times at .*numbers\.txt \(bytes \d+-\d+\)"):
        clew.prepare(slow(deadly=150), input=[str(numbers)], output=str(tmp_path / "d"), workers=2)
    assert not (tmp_path / "d").exists()


@pytest.mark.timeout(60)
def test_two_commands_at_once_share_the_work(numbers: Path, cache: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    commands = [_command(numbers, tmp_path / name, "--workers", "1", "--set", f"log={log}") for name in ("one", "two")]
    processes = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for command in commands]
    assert [process.wait() for process in processes] == [0, 0]
    assert fingerprint(tmp_path / "one") == fingerprint(tmp_path / "two")
    worked = log.read_text().splitlines()
    assert len(worked) < 1.1 * len(set(worked)), "a piece may be done twice where both begin it at one moment"


def test_a_claim_ends_with_its_process(tmp_path: Path) -> None:
    cache = StageCache(tmp_path)
    code = f"""
import sys, time
from pathlib import Path
from clew.data.prepare.stage_cache import StageCache
with StageCache(Path({str(tmp_path)!r})).claim("abcd"):
    print("held", flush=True)
    time.sleep(60)
"""
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    with pytest.raises(BusyError), cache.claim("abcd"):
        pass
    holder.kill()
    holder.wait()
    holder.stdout.close()
    with cache.claim("abcd"):
        pass


def test_ctrl_c_leaves_a_state_that_can_be_resumed(
    numbers: Path, cache: Path, tmp_path: Path, expected: dict[str, str]
) -> None:
    def stop(state: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        clew.prepare(slow(), input=[str(numbers)], output=str(tmp_path / "d"), workers=2, progress=stop)
    assert threading.active_count() < 10
    assert not (tmp_path / "d").exists()
    dataset = clew.prepare(slow(), input=[str(numbers)], output=str(tmp_path / "d"), workers=2)
    assert fingerprint(dataset.path) == expected
