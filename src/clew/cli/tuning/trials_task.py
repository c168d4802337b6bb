"""What a job of kind `trial` does: it runs the trials that a server assigned to it, and reports them to the server."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from clew.cli.options import console, overrides
from clew.errors import ConfigError
from clew.jobs.task import TrialsTask

if TYPE_CHECKING:
    from clew.settings import Settings
    from clew.tuning.folder import StudyFolder


def run(task: TrialsTask, index: int | None = None) -> None:
    """Run the trials, and print one line per trial that ended.

    Raises:
        ConfigError: There is no server to report to, or the settings or the data are not valid.
        RunError: The server has assigned the trials to another agent, or too many of them failed.
    """
    from clew.client.connection import Connection
    from clew.client.credentials import credentials
    from clew.errors import RunError
    from clew.settings import load_settings
    from clew.tuning.api import check_settings, run_assigned_trials
    from clew.tuning.assigned_study import AssignedStudy
    from clew.tuning.proposed_trial import ProposedTrial

    login = credentials()
    if login is None:
        raise ConfigError("no server to report to: CLEW_SERVER is not set; an agent sets it")
    template = load_settings(task.settings, overrides(None, train__dataset=task.dataset))
    config = check_settings(template)
    folder = _folder(task, template)
    trials = [ProposedTrial(each.trial, each.settings) for each in task.trials]
    with Connection(login.server, login.token, retry_seconds=0) as connection:
        study = AssignedStudy(folder, config, trials, task.study, connection)
        study.on_result = lambda number, state, text: console.print(f"trial {number} {state}  {text}", markup=False)
        run_assigned_trials(template, study)
    if study.is_lost:
        raise RunError(f"the server has assigned the trials of study {task.study} to another agent")


def _folder(task: TrialsTask, template: Settings) -> StudyFolder:
    """Return the folder of the runs; create it, and the datasets of folds, in the first attempt."""
    from clew.data.dataset import Dataset
    from clew.tuning import folds
    from clew.tuning.folder import StudyFolder

    path = Path(task.output)
    if path.exists() and not StudyFolder(path).config_file.exists():
        shutil.rmtree(path)  # an earlier attempt was killed while it created the folder
    folder = StudyFolder(path) if path.exists() else StudyFolder.create(path, template.data)
    if template.tune is not None and template.tune.folds is not None:
        shared = Path(task.folds)
        folds.write_folds(shared, Dataset(template.train.dataset), template.tune.folds, template.prepare)
        with contextlib.suppress(FileExistsError):
            folder.folds.symlink_to(shared, target_is_directory=True)
    return folder
