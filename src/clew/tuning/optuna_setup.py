"""Create the storage, the sampler and the pruner of Optuna from the settings of a study."""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import time
import warnings
import zlib
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import BaseStorage, InMemoryStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalStorage
from optuna.storages.journal._storage import JournalOperation

from clew.core.file_lock import FileLock
from clew.errors import ConfigError
from clew.tuning import space
from clew.tuning.config import PrunerConfig, TuneConfig

optuna.logging.set_verbosity(optuna.logging.ERROR)
_SYNC_SECONDS = 1.0
"""Shortest time between two forced writes of the journal to disk."""
_NEEDS = {"cmaes": ("cmaes",), "gp": ("scipy", "torch"), "qmc": ("scipy",), "wilcoxon": ("scipy",)}
"""Packages that some samplers and pruners of Optuna need."""


def create_storage(name: str, folder: Path) -> BaseStorage:
    """Return the storage of trials.

    Args:
        name: `journal`, `sqlite`, `memory` or the URL of a database.
        folder: The folder of the study.

    Raises:
        ConfigError: The name is not valid, or the database cannot be reached.
    """
    if name == "memory":
        return InMemoryStorage()
    if name == "journal":
        path = folder / "journal.log"
        lock = FileLock(folder / "journal.lock")
        _repair(path, lock)
        return JournalStorage(_Journal(path, lock))
    url = f"sqlite:///{(folder / 'study.db').absolute()}" if name == "sqlite" else name
    if "://" not in url:
        raise ConfigError(f"tune.storage '{name}': choose journal, sqlite or a URL such as postgresql://user@host/name")
    try:
        return RDBStorage(url.replace("postgresql://", "postgresql+psycopg://", 1))
    except Exception as error:  # SQLAlchemy and its drivers raise many kinds
        raise ConfigError(f"tune.storage {url}: {str(error).splitlines()[0]}") from error


class _Journal(JournalFileBackend):
    """The journal of Optuna with fewer forced writes: only ends of trials are, at most once per second.

    A killed process loses nothing. If the machine loses power, the last second is lost; a trial that is a run is then
    told again from its records."""

    def __init__(self, path: Path, lock: FileLock) -> None:
        super().__init__(str(path))
        self._path, self._journal_lock, self._synced = path, lock, 0.0

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        lines = "".join(json.dumps(entry, separators=(",", ":")) + "\n" for entry in logs)
        with self._journal_lock.held(), self._path.open("ab", buffering=0) as file:
            size = file.tell()
            try:
                if file.write(lines.encode()) < len(lines.encode()):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
            except OSError:
                file.truncate(size)  # an incomplete line would make the later ones unreadable
                raise
            ends = any(entry["op_code"] == JournalOperation.SET_TRIAL_STATE_VALUES for entry in logs)
            if ends and time.monotonic() - self._synced > _SYNC_SECONDS:
                os.fsync(file.fileno())
                self._synced = time.monotonic()


def _repair(path: Path, lock: FileLock) -> None:
    """Remove an incomplete last line, which a full disk or a kill left and which Optuna cannot read."""
    if not path.exists():
        return
    with lock.held(), path.open("rb+") as file:
        size = file.seek(0, os.SEEK_END)
        while size and (file.seek(size - 1), file.read(1))[1] != b"\n":
            size -= 1
        file.truncate(size)


def create_sampler(config: TuneConfig, *, after: int = 0) -> optuna.samplers.BaseSampler:
    """Return the sampler of a study.

    Args:
        config: The settings of the study.
        after: Number of trials that exist already. It changes the seed, so that a new process does not propose the
            same values again.

    Raises:
        ConfigError: The sampler does not support the objectives, or needs a package that is not installed.
    """
    chosen, several = config.sampler, len(config.objectives) > 1
    _check_packages(chosen.name, "tune.sampler")
    if several and chosen.name == "cmaes":
        raise ConfigError("tune.sampler: cmaes supports one objective only; for several choose tpe, gp or nsga2")
    seed, kinds = chosen.seed, optuna.samplers
    if seed is not None and after and chosen.name not in ("grid", "qmc"):  # those continue from the trials of the study
        seed = zlib.crc32(f"{seed} {after}".encode())
    startup: dict[str, Any] = {} if chosen.startup is None else {"n_startup_trials": chosen.startup}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        match chosen.name:
            case "tpe":
                # one joint fit: with 10,000 trials it takes a quarter of the time of one fit per parameter
                conditions = any(parameter.when for parameter in config.space.values())
                return kinds.TPESampler(
                    seed=seed, multivariate=True, group=conditions, warn_independent_sampling=False, **startup
                )
            case "cmaes":
                size: dict[str, Any] = {} if chosen.population is None else {"popsize": chosen.population}
                return kinds.CmaEsSampler(seed=seed, warn_independent_sampling=False, **startup, **size)
            case "gp":
                return kinds.GPSampler(seed=seed, warn_independent_sampling=False, **startup)
            case "nsga2":
                return kinds.NSGAIISampler(seed=seed, population_size=chosen.population or 50)
            case "grid":
                return _Grid(space.grid_values(config.space), seed=seed)
            case "qmc":
                return kinds.QMCSampler(
                    seed=seed, scramble=True, warn_asynchronous_seeding=False, warn_independent_sampling=False
                )
    return kinds.RandomSampler(seed=seed)


class _Grid(optuna.samplers.GridSampler):
    """The grid sampler of Optuna without its stop of Optuna's own loop: the study counts its trials itself."""

    def after_trial(self, *_: Any) -> None:
        pass


def create_pruner(config: PrunerConfig, steps: int) -> optuna.pruners.BasePruner:
    """Return the pruner of a study; `steps` is the number of steps of a complete trial."""
    _check_packages(config.name, "tune.pruner")
    kinds = optuna.pruners
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        match config.name:
            case "asha":
                return kinds.SuccessiveHalvingPruner(
                    min_resource=max(1, config.warmup), reduction_factor=config.reduction
                )
            case "hyperband":
                return kinds.HyperbandPruner(
                    min_resource=max(1, config.warmup), max_resource=max(1, steps), reduction_factor=config.reduction
                )
            case "median":
                return kinds.MedianPruner(n_startup_trials=config.startup, n_warmup_steps=config.warmup)
            case "wilcoxon":
                return kinds.WilcoxonPruner(p_threshold=config.threshold, n_startup_steps=config.warmup)
    return kinds.NopPruner()


def _check_packages(name: str, setting: str) -> None:
    for package in _NEEDS.get(name, ()):
        if importlib.util.find_spec(package) is None:
            raise ConfigError(f"{setting}: {name} needs the package {package}: pip install {package}")
