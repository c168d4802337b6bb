"""The processes that work together on one run: those that a launcher started, or this process alone."""

from __future__ import annotations

import atexit
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clew.errors import ClewError, ConfigError, WorkerError, error_from_process
from clew.jobs.rank_info import RankInfo, current_rank, open_rank_store
from clew.training.config import TrainConfig


@dataclass(frozen=True)
class LaunchContext:
    """The processes that torchrun, mpiexec or srun started, seen from one of them; or this process alone."""

    place: RankInfo
    """The rank of this process, and the number of processes."""
    root: Path
    """The folder in which runs are created."""
    store: Any = None
    """A torch store through which the processes exchange short texts; None for a single process."""

    @classmethod
    def join(cls, root: Path) -> LaunchContext:
        """Find out how this process was started, and connect to the other processes.

        Args:
            root: A folder that all processes can see. It is created if needed.
        """
        place = current_rank()
        if place.ranks == 1:
            return cls(place, root)
        root.mkdir(parents=True, exist_ok=True)
        atexit.register(_wait_for_gloo_threads)
        return cls(place, root, open_rank_store(place, root))

    def with_workers(self, config: TrainConfig) -> TrainConfig:
        """Return the settings with the number of workers that the launcher started.

        Raises:
            ConfigError: The settings ask for another number.
        """
        if self.place.ranks == 1:
            return config
        masters = config.processes - config.workers
        ranks = self.worker_count(1 if config.workers == 1 else config.processes, "train.workers with its masters")
        if ranks <= masters:
            raise ConfigError(
                f"{self.place.launcher} started {ranks} processes, all of which would be masters; start more"
            )
        return config.model_copy(update={"workers": ranks - masters})

    def worker_count(self, workers: int, setting: str = "workers") -> int:
        """Return the number of processes of the launcher or, without a launcher, the number asked for.

        Args:
            workers: The number asked for. 1 means "as many as there are".
            setting: Name of the setting, for the message.

        Raises:
            ConfigError: The launcher started another number.
        """
        ranks = self.place.ranks
        if ranks > 1 and workers not in (1, ranks):
            raise ConfigError(f"{setting} is {workers}, but {self.place.launcher} started {ranks} processes")
        return max(ranks, workers)

    def from_rank_zero(self, name: str, make: Callable[[], str]) -> str:
        """Call `make` on rank 0 and return its result on every rank.

        Args:
            name: Key under which the result is exchanged.
            make: Called on rank 0 only.

        Raises:
            WorkerError: `make` failed on rank 0, and this is another rank.
        """
        if self.store is None:
            return make()
        if self.place.rank:
            text: str = self.store.get(name).decode()
            if text.startswith("!"):
                raise WorkerError(f"rank {self.place.rank} stops because rank 0 failed: {text[1:]}")
            return text
        try:
            result = make()
        except ClewError as error:
            self.store.set(name, f"!{error}")
            raise
        self.store.set(name, result)
        return result


def first_failure(error: Exception, place: RankInfo, store: Any) -> Exception:
    """Return the error of the rank that failed first. Other ranks may know it only as a lost connection.

    Args:
        error: The error on this rank.
        place: The rank of this process.
        store: The store of `LaunchContext`.
    """
    kind = type(error).__name__
    message = f"{kind}: {error}" if not isinstance(error, ClewError) else str(error)
    try:
        first = store.compare_set("failure", "", f"{place.rank} {kind} {message}").decode()
    except RuntimeError:  # rank 0 has ended, and the store with it
        return error
    rank, kind, text = first.split(" ", 2)
    return error if int(rank) == place.rank else error_from_process(f"rank {rank}", kind, text)


def _wait_for_gloo_threads(patience: float = 5.0) -> None:
    """Wait until the threads of gloo are idle, before the interpreter ends.

    A thread that still has to release a Python object (torch's backward leaves a context in every transfer) would be
    ended by Python before version 3.14, and C++ would then abort the process. A sleeping thread has nothing to release.
    """
    end = time.monotonic() + patience
    time.sleep(0.05)
    while time.monotonic() < end and any(_is_busy(task) for task in Path("/proc/self/task").glob("*/stat")):
        time.sleep(0.05)


def _is_busy(task: Path) -> bool:
    """Whether this is a thread of gloo that is not asleep."""
    try:
        name, state = task.read_text().split("(", 1)[1].rsplit(") ", 1)
    except OSError:  # the thread has ended
        return False
    return "gloo" in name and not state.startswith("S")
