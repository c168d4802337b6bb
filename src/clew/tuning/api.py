"""`clew.tune`: from settings and a search space to a finished study."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
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
from clew.tuning.assigned_study import AssignedStudy
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
from clew.tuning.study_html import shown_study
from clew.tuning.study_push import study_pushed

STUDIES = Path("studies")
"""The folder of studies whose path is not given."""
_FIXED = ("space", "objective", "direction", "folds", "storage")
"""Settings that cannot change after a study was created."""
_EXAMPLE = "tune: {space: {train.optimizer.lr: {log: [1e-5, 1e-1]}}, objective: val/loss}"


def tune(
    template: Template | TuneConfig,
    study: str | Path | Study | None = None,
    *,
    function: Callable[[Mapping[str, Any]], Any] | None = None,
    executor: Callable[[Study], Executor] | None = None,
    join: bool = False,
    on_progress: Callable[[Study], None] | None = None,
) -> Study:
    """Run trials until the requested number has ended, and return the study.

    Args:
        template: Settings with a section `tune`, as returned by `clew.settings.load_settings`: every trial is a run.
            With `function`, a `clew.TuneConfig`.
        study: A study, or the folder of one. A folder that holds a study is resumed. Default: the next free name in
            `studies/`.
        function: Called once per trial with the values by key. It returns the objective, a list of objectives, or
            yields the objective after every step, so that the trial can be pruned.
        executor: Builds what executes the trials. Default: jobs on this machine (see `local_executor`).
        join: Also run trials if another process coordinates this study.
        on_progress: Called with the study about twice per second. Default: in a notebook, the study is shown.

    Returns:
        The study, with all its trials.

    Raises:
        ConfigError, DataError: The space, the settings or the data are not valid. No trial was started, or only the
            first one if the objective is not a metric of the recipe.
        RunError: Another process coordinates this study, or too many trials failed in a row.
        StoppedError: A signal stopped the study. Call again to resume it.

    Example:
        >>> import clew, tempfile
        >>> config = clew.TuneConfig(space={"x": {"uniform": [0, 1]}}, trials=5)
        >>> study = clew.tune(config, tempfile.mkdtemp() + "/study", function=lambda values: values["x"] ** 2)
        >>> len(study.trials())
        5
    """
    opened = study if isinstance(study, Study) else open_or_create(template, study)
    coordinators = active_coordinators(opened.folder)
    if coordinators and not join:
        raise RunError(
            f"{opened.folder.path}: {' and '.join(coordinators)} coordinates this study; wait for it, or use --join"
        )
    if executor is None and function is not None:
        trial_executor: Executor = FunctionExecutor(function)
    else:
        trial_executor = (executor or partial(local_executor, template))(opened)
    with study_pushed(opened) as snapshot, shown_study(opened, on_progress) as show:

        def progress() -> None:
            snapshot()
            show(opened)

        _run(StudyCoordinator(opened, trial_executor, on_progress=progress))
    return opened


def run_assigned_trials(template: Template, study: AssignedStudy) -> None:
    """Run the trials that a server assigned to this job, on the cores and devices of the job.

    Args:
        template: The settings of the study.
        study: The trials.

    Raises:
        ConfigError, DataError: The settings or the data are not valid.
        RunError: Too many trials failed in a row.
        StoppedError: A signal stopped the trials. The next attempt of the job resumes them.
    """
    assert template.tune is not None, "a study has settings"
    slots = trial_slots(1, study.config.ranks, oversubscribe=True)
    warm.prepare_server(template.recipe.location)
    executor = (PackExecutor if study.config.packed else JobExecutor)(study.folder, template, slots)
    _run(StudyCoordinator(study, executor))


def _run(coordinator: StudyCoordinator) -> None:
    try:
        with _stop_on_signals(coordinator), pushed(root=coordinator.study.folder.trials):
            coordinator.run()
    finally:
        warm.release_idle_processes()


def local_executor(template: Template | TuneConfig, study: Study, *, oversubscribe: bool = False) -> Executor:
    """Return an executor that runs the trials of a study as jobs on this machine.

    Args:
        template: The settings of the study.
        study: The study.
        oversubscribe: Allow more trials at a time than there are cores or devices.

    Raises:
        ConfigError: More trials at a time are requested than fit on this machine.
    """
    assert not isinstance(template, TuneConfig), "a study of runs needs settings"
    slots = trial_slots(study.config.parallel, study.config.ranks, oversubscribe=oversubscribe)
    warm.prepare_server(template.recipe.location)
    return (PackExecutor if study.config.packed else JobExecutor)(study.folder, template, slots)


def open_or_create(template: Template | TuneConfig, path: str | Path | None = None) -> Study:
    """Open the study at `path`, or create it if there is none.

    Raises:
        ConfigError, DataError: The space, the settings or the data are not valid.
    """
    if path is not None and (Path(path) / "config.yaml").exists():
        return _open(template, path)
    if isinstance(template, TuneConfig):
        data, name = {"tune": template.model_dump(mode="json")}, "study"
        config = template
    else:
        data = template.changed(space.absolute_paths(template.data), "the study").data
        name = Path(template.recipe.location).stem
        config = check_settings(template)
    study = Study.create(path or next_run_path(STUDIES, name), data, config)
    if not isinstance(template, TuneConfig) and config.folds is not None:
        folds.write_folds(study.folder.folds, Dataset(template.train.dataset), config.folds, template.prepare)
    return study


def _open(template: Template | TuneConfig, path: str | Path) -> Study:
    """Open a study. Settings that may change (number of trials, how they are executed) are taken from `template`."""
    folder = StudyFolder.open(path)
    before, now = folder.config(), template if isinstance(template, TuneConfig) else template.tune
    if now is None or now == before:
        return Study(folder, before)
    for name in _FIXED:
        if getattr(before, name) != getattr(now, name):
            raise ConfigError(f"{path}: tune.{name} differs from the one the study was created with; use a new study")
    write_text(folder.config_file, to_yaml({**folder.document().data, "tune": to_data(now)}))
    return Study(folder, now)


def check_settings(template: Template) -> TuneConfig:
    """Check everything about a study that can be checked before the first trial, and return its settings.

    Raises:
        ConfigError, DataError: A setting, the space or the data is not valid.
    """
    if template.tune is None:
        raise ConfigError(f"no section `tune`: name the space and the objective (for example {_EXAMPLE})")
    if template.train.replicas is not None or "train.replicas" in template.tune.space:
        raise ConfigError("a trial trains one model: remove train.replicas (train.seed can be searched)")
    data = Dataset(template.train.dataset)
    space.check_space(template, template.tune, data.manifest.settings)
    if template.tune.folds is not None:
        folds.check_folds(data, template.tune.folds, template.prepare)
    return template.tune


@contextlib.contextmanager
def _stop_on_signals(coordinator: StudyCoordinator) -> Iterator[None]:
    """Stop the study, resumable, on SIGTERM, SIGUSR1 and Ctrl-C; a second Ctrl-C interrupts at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        if coordinator.stopping and number == signal.SIGINT:
            raise KeyboardInterrupt
        coordinator.stopping = True

    previous = {n: signal.signal(n, stop) for n in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
