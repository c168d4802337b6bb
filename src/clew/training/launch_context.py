"""The processes that work together on a run: those a launcher started, or this one alone."""

from __future__ import annotations

import atexit
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clew.errors import ClewError, ConfigError, WorkerError
from clew.jobs.rank_info import RankInfo, open_rank_store
from clew.jobs.rank_info import current_rank as launched
from clew.training.config import TrainConfig


@dataclass(frozen=True)
class LaunchContext:
    """The processes a launcher started, of which this is one; or this one alone."""

    here: RankInfo
    root: Path
    """Where runs are made."""
    store: Any = None

    @classmethod
    def gathered(cls, root: Path) -> LaunchContext:
        here = launched()
        if here.ranks == 1:
            return cls(here, root)
        root.mkdir(parents=True, exist_ok=True)
        atexit.register(_settle)
        return cls(here, root, open_rank_store(here, root))

    def sized(self, config: TrainConfig) -> TrainConfig:
        """The settings with as many workers as there are.

        Raises:
            ConfigError: they ask for another number.
        """
        if self.here.ranks == 1:
            return config
        extra = config.processes - config.workers
        ranks = self.size(1 if config.workers == 1 else config.processes, "train.workers with its masters")
        if ranks <= extra:
            raise ConfigError(
                f"{self.here.launcher} started {ranks} processes, all of which would be masters; start more"
            )
        return config.model_copy(update={"workers": ranks - extra})

    def size(self, workers: int, called: str = "workers") -> int:
        """As many workers as there are, or as are asked for where no launcher started any.

        Raises:
            ConfigError: another number is asked for.
        """
        ranks = self.here.ranks
        if ranks > 1 and workers not in (1, ranks):
            raise ConfigError(f"{called} is {workers}, but {self.here.launcher} started {ranks} processes")
        return max(ranks, workers)

    def share(self, name: str, make: Callable[[], str]) -> str:
        """What rank 0 makes, on every rank.

        Raises:
            WorkerError: rank 0 could not, and this is another.
        """
        if self.store is None:
            return make()
        if self.here.rank:
            word: str = self.store.get(name).decode()
            if word.startswith("!"):
                raise WorkerError(f"rank {self.here.rank} gives up, because rank 0 did: {word[1:]}")
            return word
        try:
            made = make()
        except ClewError as error:
            self.store.set(name, f"!{error}")
            raise
        self.store.set(name, made)
        return made


def first_failure(error: Exception, here: RankInfo, store: Any) -> Exception:
    """The error of the rank that failed first, which the others may know only as a lost connection."""
    told = f"{type(error).__name__}: {error}" if not isinstance(error, ClewError) else str(error)
    try:
        first = store.compare_set("failure", "", f"{here.rank} {told}").decode()
    except RuntimeError:  # rank 0, who kept the store, is gone
        return error
    rank, _, words = first.partition(" ")
    return error if int(rank) == here.rank else WorkerError(f"rank {rank}: {words}")


def _settle(patience: float = 5.0) -> None:
    """Let gloo's threads come to rest before the interpreter ends.

    One that still has to let go of a Python object then (the context that torch's backward leaves in every transfer)
    would be ended by Python before 3.14, and C++ would abort the process. Sleeping threads have nothing left to do.
    """
    end = time.monotonic() + patience
    time.sleep(0.05)
    while time.monotonic() < end and any(_busy(task) for task in Path("/proc/self/task").glob("*/stat")):
        time.sleep(0.05)


def _busy(task: Path) -> bool:
    """Whether a thread of gloo wants to run."""
    try:
        name, state = task.read_text().split("(", 1)[1].rsplit(") ", 1)
    except OSError:  # it has ended
        return False
    return "gloo" in name and not state.startswith("S")
