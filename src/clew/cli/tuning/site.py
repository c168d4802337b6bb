"""`clew tune run --on SITE`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clew.cli.jobs.command_words import command_words
from clew.cli.jobs.on_site import SiteOptions, SiteWork
from clew.cli.options import overrides
from clew.errors import ConfigError, nearest
from clew.jobs.launchers.launcher import Slot
from clew.jobs.task import command_task

if TYPE_CHECKING:
    from clew.jobs.sites import SiteLauncher
    from clew.tuning.executor import Executor
    from clew.tuning.space import Template
    from clew.tuning.study import Study

_PARALLEL = 4
"""Trials at a time where no number is set: a queue would take any, but a search learns from trials that have ended."""


def plan(site: SiteOptions, spread: str, **options: Any) -> SiteWork | None:
    """Run the trials as jobs and return nothing; or return what is submitted."""
    from clew.cli.tuning import run
    from clew.runs.folder import next_run_path
    from clew.settings import load_settings
    from clew.tuning.api import STUDIES, open_or_create

    recipe, resume, output = options["recipe"], options["resume"], options["output"]
    if (recipe is None) == (resume is None):
        raise ConfigError("name a recipe or a YAML with a section `tune`, or a study (--resume STUDY)")
    names = {
        "tune__trials": "trials",
        "tune__parallel": "parallel",
        "tune__ranks": "ranks",
        "train__dataset": "dataset",
    }
    settings = overrides(options["settings"], **{key: options[name] for key, name in names.items()})
    source = str(recipe or f"{resume}/config.yaml")
    template = load_settings(source, settings)
    if not site.profile.takes_jobs:
        from clew.cli.jobs.panda import submit_study

        submit_study(site, template, source, settings)
        return None
    config = template.tune
    if config is None:
        raise ConfigError(f"{source}: no section `tune`")
    study = Path(resume or output or next_run_path(STUDIES, Path(template.recipe.location).stem))
    parallel = config.parallel or _PARALLEL
    if spread == "trials":
        launcher = _launcher(site, study, config.ranks)
        executor = partial(_job_executor, launcher, parallel)
        run.coordinate(source, settings, str(study), join=options["join"], executor=executor)
        return None
    if spread == "block":
        named = {**options, "output": None if resume else str(study)}
        task = command_task(command_words(("tune", "run"), named))
        return SiteWork("tune", study, task, workers=parallel * config.ranks + 1, requeue=True)
    if spread != "array":
        raise ConfigError(f"--as {spread}{nearest(spread, ('trials', 'array', 'block'))}")
    open_or_create(template, study)
    task = command_task(["tune", "run", "--resume", str(study), "--join", "--parallel", "1"])
    request = {"array": parallel, "cpus": config.ranks * (site.values["cpus"] or site.profile.cpus)}
    return SiteWork("tune", study, task, request=request)


def _launcher(site: SiteOptions, study: Path, ranks: int) -> SiteLauncher:
    from clew.jobs.sites import site_launcher

    work = SiteWork("tune", study, command_task(["tune", "run", "--resume", str(study)]), workers=ranks)
    return site_launcher(site.profile, site.request(work))


def _job_executor(launcher: SiteLauncher, parallel: int, template: Template, study: Study) -> Executor:
    from clew.tuning.job_executor import JobExecutor

    return JobExecutor(study.folder, template, [Slot()] * parallel, launcher)
