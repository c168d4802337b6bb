"""The other work of a soak: preparations, studies and asynchronous trainings, one after the other, in processes."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.chaos.scenarios import CLEW, ONE_THREAD, RECIPE, Prepare, Study, make_inputs

_WORKER_SECONDS = 10.0
"""Seconds after which a worker that joined a training is killed and another one joins."""

_NICE = 5


class OtherWork:
    """Three loops in threads. Each repeats one command in a new folder until `stop`. All run on the last core."""

    def __init__(self, folder: Path, *, is_nice: bool = False) -> None:
        """With `is_nice` everything has a lower priority than usual."""
        self._is_nice = is_nice
        self.folder, self.inputs = folder, folder / "inputs"
        self.pids: dict[str, list[int]] = {"prepare": [], "study": [], "training": []}
        """The processes that run now; their children belong to them."""
        self.done: Counter[str] = Counter()
        """Commands that succeeded."""
        self.failed: list[str] = []
        """The last output of commands that failed."""
        self.workers_killed = 0
        self._over = threading.Event()
        loops: tuple[Callable[[], None], ...] = (self._prepare, self._study, self._train)
        self._threads = [threading.Thread(target=self._repeat, args=(loop,)) for loop in loops]

    def start(self) -> None:
        """Make the inputs and start."""
        self.inputs.mkdir(parents=True)
        make_inputs(self.inputs)
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Let every loop finish its command."""
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _repeat(self, work: Callable[[], None]) -> None:
        while not self._over.is_set():
            work()

    def _new_folder(self, kind: str) -> Path:
        folder = self.folder / kind
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return folder

    def _start(self, kind: str, command: list[str], folder: Path) -> subprocess.Popen[bytes]:
        with (folder / "log").open("ab") as log:
            process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                start_new_session=True,
                preexec_fn=self._first,
            )
        self.pids[kind].append(process.pid)
        return process

    def _first(self) -> None:
        """What each process does first. With autogroups a value per session counts."""
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        if self._is_nice:
            os.nice(_NICE)
            with contextlib.suppress(OSError):
                Path("/proc/self/autogroup").write_text(str(_NICE))

    def _finish(self, kind: str, process: subprocess.Popen[bytes], folder: Path) -> None:
        code = process.wait()
        self.pids[kind].remove(process.pid)
        if code == 0:
            self.done[kind] += 1
        else:
            self.failed.append(f"{kind}: exit code {code}: {(folder / 'log').read_text(errors='replace')[-2000:]}")

    def _prepare(self) -> None:
        folder = self._new_folder("prepare")
        self._finish("prepare", self._start("prepare", Prepare(folder, self.inputs).command(), folder), folder)

    def _study(self) -> None:
        folder = self._new_folder("study")
        self._finish(
            "study", self._start("study", [*Study(folder, self.inputs).command(), "--oversubscribe"], folder), folder
        )

    def _train(self) -> None:
        """A master with one worker of its own, and a second one that is killed and replaced again and again."""
        folder = self._new_folder("training")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        words = ["train", str(RECIPE), "--dataset", str(self.inputs / "data"), "--output", str(folder / "run")]
        words += ["--strategy", "downpour", "--workers", "1", "--listen", address, "--epochs", "20"]
        words += [*ONE_THREAD, "--set", "train.asynchronous.lease_seconds=10"]
        master = self._start("training", [*CLEW, *words], folder)
        token = folder / "run" / "token"
        while master.poll() is None:
            if not token.exists():
                self._wait(master, 1.0)
                continue
            joining = [*CLEW, "worker", address, "--token-file", str(token)]
            worker = self._start("training", joining, folder)
            self._wait(master, _WORKER_SECONDS)
            self.workers_killed += worker.poll() is None and master.poll() is None
            worker.kill()  # also one that came too late: it waits for a master that has finished
            worker.wait()
            self.pids["training"].remove(worker.pid)
        self._finish("training", master, folder)

    @staticmethod
    def _wait(process: subprocess.Popen[bytes], seconds: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
