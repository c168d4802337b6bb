"""Optuna, made from settings: where trials are kept, who proposes them, who prunes them."""

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
_SYNC = 1.0
_NEEDS = {"cmaes": ("cmaes",), "gp": ("scipy", "torch"), "qmc": ("scipy",), "wilcoxon": ("scipy",)}
"""Packages that Optuna loads for some."""


def create_storage(where: str, folder: Path) -> BaseStorage:
    """Where trials are kept: `journal`, `sqlite`, `memory` or a URL.

    Raises:
        ConfigError: a database cannot be reached.
    """
    if where == "memory":
        return InMemoryStorage()
    if where == "journal":
        path = folder / "journal.log"
        lock = FileLock(folder / "journal.lock")
        _mend(path, lock)
        return JournalStorage(_Journal(path, lock))
    url = f"sqlite:///{(folder / 'study.db').absolute()}" if where == "sqlite" else where
    if "://" not in url:
        raise ConfigError(f"tune.storage '{where}': choose journal, sqlite or a URL, as postgresql://user@host/name")
    try:
        return RDBStorage(url.replace("postgresql://", "postgresql+psycopg://", 1))
    except Exception as error:  # of SQLAlchemy and of whatever driver it found
        raise ConfigError(f"tune.storage {url}: {str(error).splitlines()[0]}") from error


class _Journal(JournalFileBackend):
    """Optuna's, which forces every line to the disk before it goes on; here only ends of trials are, at most once a
    second. A process that is killed loses nothing either way. A machine that loses power loses what the last second
    told; a trial that is a run is then told again from its records."""

    def __init__(self, path: Path, lock: FileLock) -> None:
        super().__init__(str(path))
        self._path, self._held, self._synced = path, lock, 0.0

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        lines = "".join(json.dumps(each, separators=(",", ":")) + "\n" for each in logs)
        with self._held.held(), self._path.open("ab", buffering=0) as file:
            size = file.tell()
            try:
                if file.write(lines.encode()) < len(lines.encode()):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
            except OSError:
                file.truncate(size)  # half a line would spoil those behind it
                raise
            ends = any(each["op_code"] == JournalOperation.SET_TRIAL_STATE_VALUES for each in logs)
            if ends and time.monotonic() - self._synced > _SYNC:
                os.fsync(file.fileno())
                self._synced = time.monotonic()


def _mend(path: Path, lock: FileLock) -> None:
    """Remove a line that a full disk or a kill cut short: Optuna would stumble over what comes behind it."""
    if not path.exists():
        return
    with lock.held(), path.open("rb+") as file:
        size = file.seek(0, os.SEEK_END)
        while size and (file.seek(size - 1), file.read(1))[1] != b"\n":
            size -= 1
        file.truncate(size)


def create_sampler(config: TuneConfig, *, after: int = 0) -> optuna.samplers.BaseSampler:
    """Who proposes values. One that begins `after` so many trials of another must not propose the same again.

    Raises:
        ConfigError: it does not fit the objectives, or needs a package that is not there.
    """
    chosen, several = config.sampler, len(config.objectives) > 1
    _check(chosen.name, "tune.sampler")
    if several and chosen.name == "cmaes":
        raise ConfigError("tune.sampler: cmaes takes one objective; for several choose tpe, gp or nsga2")
    seed, kinds = chosen.seed, optuna.samplers
    if seed is not None and after and chosen.name not in ("grid", "qmc"):  # those go on from what the study says
        seed = zlib.crc32(f"{seed} {after}".encode())
    startup: dict[str, Any] = {} if chosen.startup is None else {"n_startup_trials": chosen.startup}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        match chosen.name:
            case "tpe":
                # one joint fit: with 10,000 trials a quarter of the time of one fit a parameter
                conditions = any(each.when for each in config.space.values())
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
    """Optuna's, which stops a loop of Optuna's when it has been everywhere; ours counts by itself."""

    def after_trial(self, *_: Any) -> None:
        pass


def create_pruner(config: PrunerConfig, steps: int) -> optuna.pruners.BasePruner:
    """Who stops trials; `steps` is how many a whole one has."""
    _check(config.name, "tune.pruner")
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


def _check(name: str, setting: str) -> None:
    for package in _NEEDS.get(name, ()):
        if importlib.util.find_spec(package) is None:
            raise ConfigError(f"{setting}: {name} needs the package {package}: pip install {package}")
