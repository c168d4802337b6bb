"""`clew.tune`: settings and a space to a study."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from clew.core.config import to_data, to_yaml
from clew.core.files import write_text
from clew.data.dataset import Dataset
from clew.errors import ConfigError, RunError
from clew.jobs.launchers import warm
from clew.runs.folder import next_run_path
from clew.runs.push_process import pushed
from clew.tuning import folds, space
from clew.tuning.config import TuneConfig
from clew.tuning.coordinator import StudyCoordinator
from clew.tuning.executor import Executor
from clew.tuning.folder import StudyFolder
from clew.tuning.function_executor import FunctionExecutor
from clew.tuning.heartbeat import active_coordinators
from clew.tuning.job_executor import JobExecutor
from clew.tuning.pack_executor import PackExecutor
from clew.tuning.resource_slots import trial_slots
from clew.tuning.space import Template
from clew.tuning.study import Study

STUDIES = Path("studies")


def tune(
    template: Template | TuneConfig,
    study: str | Path | Study | None = None,
    *,
    function: Callable[[Mapping[str, Any]], Any] | None = None,
    executor: Callable[[Study], Executor] | None = None,
    join: bool = False,
    oversubscribe: bool = False,
    shown: Callable[[Study], None] | None = None,
) -> Study:
    """Search until as many trials as are wanted have ended, and return the study.

    `template` is what `clew.settings.load_settings` gives, with a section `tune`; every trial is a run, a job on this
    machine (or, with `executor`, as that does it). With `function` it is a `TuneConfig`, and a trial is a call of the
    function with the values by key: it returns the objective, a list of them, or yields it after each step.

    `study` is its folder (default: the next free one under `studies/`); one that exists is gone on with. `shown` is
    called with the study now and then. `join` helps another process with a study it is at.

    Raises:
        ConfigError, DataError: the space, the settings or the data do not fit; nothing was begun, or, where the
            objective is no metric of the recipe's, the first trial alone.
        RunError: another process is at this study, or too many trials failed one after the other.
        StoppedError: a signal stopped it; calling again goes on.
    """
    opened = study if isinstance(study, Study) else open_or_create(template, study)
    there = active_coordinators(opened.folder)
    if there and not join:
        told = f"{opened.folder.path}: {' and '.join(there)} is at this study"
        raise RunError(f"{told}; wait for it, or help with --join")
    if executor is not None:
        doing = executor(opened)
    elif function is not None:
        doing = FunctionExecutor(function)
    else:
        assert not isinstance(template, TuneConfig), "a study of runs needs settings to run with"
        rooms = trial_slots(opened.config.parallel, opened.config.ranks, oversubscribe=oversubscribe)
        warm.prepare_server(template.recipe.location)
        doing = (
            PackExecutor(opened.folder, template, rooms)
            if opened.config.packed
            else JobExecutor(opened.folder, template, rooms)
        )
    coordinator = StudyCoordinator(opened, doing, shown=None if shown is None else lambda: shown(opened))
    try:
        with _stoppable(coordinator), pushed(root=opened.folder.trials):
            coordinator.run()
    finally:
        warm.release_idle_processes()
    return opened


def open_or_create(template: Template | TuneConfig, path: str | Path | None = None) -> Study:
    """A study ready to be asked: made, or opened where it is there.

    Raises:
        ConfigError, DataError: the space, the settings or the data do not fit.
    """
    if path is not None and (Path(path) / "config.yaml").exists():
        return _opened(template, path)
    if isinstance(template, TuneConfig):
        data, name = {"tune": template.model_dump(mode="json")}, "study"
        config = template
    else:
        data, name = template.data, Path(template.recipe.location).stem
        config = check_settings(template)
    study = Study.create(path or next_run_path(STUDIES, name), data, config)
    if not isinstance(template, TuneConfig) and config.folds is not None:
        folds.write_folds(study.folder.folds, Dataset(template.train.dataset), config.folds, template.prepare)
    return study


_FIXED = ("space", "objective", "direction", "folds", "storage")
"""What a study cannot change once it was begun."""


def _opened(template: Template | TuneConfig, path: str | Path) -> Study:
    """A study that is there, with what may differ (how many trials, how they are run) as it is wanted now."""
    folder = StudyFolder.open(path)
    before, now = folder.config(), template if isinstance(template, TuneConfig) else template.tune
    if now is None or now == before:
        return Study(folder, before)
    for name in _FIXED:
        if getattr(before, name) != getattr(now, name):
            raise ConfigError(f"{path}: tune.{name} is not what it was when the study began; begin another study")
    write_text(folder.config_file, to_yaml({**folder.document().data, "tune": to_data(now)}))
    return Study(folder, now)


def check_settings(template: Template) -> TuneConfig:
    """The settings of a study, after everything about them was checked that can be before the first trial.

    Raises:
        ConfigError, DataError: something does not fit.
    """
    if template.tune is None:
        raise ConfigError(f"no section `tune`: say what is searched, and for what (see {_EXAMPLE})")
    if template.train.replicas is not None or "train.replicas" in template.tune.space:
        raise ConfigError("a trial trains one model: leave train.replicas out (train.seed can be searched)")
    data = Dataset(template.train.dataset)
    space.check_space(template, template.tune, data.manifest.settings)
    if template.tune.folds is not None:
        folds.check_folds(data, template.tune.folds, template.prepare)
    return template.tune


_EXAMPLE = "tune: {space: {train.optimizer.lr: {log: [1e-5, 1e-1]}}, objective: val/loss}"


@contextlib.contextmanager
def _stoppable(coordinator: StudyCoordinator) -> Iterator[None]:
    """SIGTERM, SIGUSR1 and Ctrl-C stop everything, ready to be gone on with; a second Ctrl-C leaves at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        if coordinator.stopping and number == signal.SIGINT:
            raise KeyboardInterrupt
        coordinator.stopping = True

    before = {n: signal.signal(n, stop) for n in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
