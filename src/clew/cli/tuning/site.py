"""`clew tune run --on SITE`: a study whose trials run as jobs of a cluster."""

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

MODES = ("trials", "array", "block")
"""`--as`: one job per trial, several jobs that each ask for trials, or one job for the whole study."""
_PARALLEL = 4
"""Default number of trials at a time. A queue would accept more, but a sampler uses only trials that have ended."""


def plan(site: SiteOptions, mode: str, **options: Any) -> SiteWork | None:
    """Run the trials as jobs and return None, or return the job to submit.

    Args:
        site: The site and its options.
        mode: One of `MODES`.
        options: The options of `clew tune run`.
    """
    from clew.cli.tuning import run
    from clew.runs.folder import next_run_path
    from clew.settings import load_settings
    from clew.tuning.api import STUDIES, open_or_create
    from clew.tuning.folder import StudyFolder

    recipe, resume, output = options["recipe"], options["resume"], options["output"]
    if (recipe is None) == (resume is None):
        raise ConfigError("name a recipe or a YAML with a section `tune`, or a study (--resume STUDY)")
    resume = None if resume is None else str(StudyFolder.open(resume).path)
    settings = _settings(options)
    source = str(recipe or f"{resume}/config.yaml")
    template = load_settings(source, settings)
    if not site.profile.takes_jobs:
        from clew.cli.jobs.panda import study_work

        return study_work(source, settings)
    config = template.tune
    if config is None:
        raise ConfigError(f"{source}: no section `tune`")
    folder = Path(resume or output or next_run_path(STUDIES, Path(template.recipe.location).stem))
    parallel = config.parallel or _PARALLEL
    if mode == "trials":
        if site.values["dry_run"]:
            raise ConfigError("--dry-run cannot print the jobs of trials: each is submitted when it has been proposed")
        launcher = _launcher(site, folder, config.ranks)
        executor = partial(_executor, launcher, parallel)
        run.coordinate(source, settings, str(folder), join=options["join"], executor=executor)
        return None
    if mode == "block":
        named = {**options, "output": None if resume else str(folder)}
        task = command_task(command_words(("tune", "run"), named))
        return SiteWork("tune", folder, task, workers=parallel * config.ranks + 1, requeue=True)
    if mode != "array":
        raise ConfigError(f"--as {mode}{nearest(mode, MODES)}")
    if not site.values["dry_run"]:
        open_or_create(template, folder)
    task = command_task(["tune", "run", "--resume", str(folder), "--join", "--parallel", "1"])
    request = {"array": parallel, "cpus": config.ranks * (site.values["cpus"] or site.profile.cpus)}
    return SiteWork("tune", folder, task, request=request)


def _settings(options: dict[str, Any]) -> list[str]:
    tune = {f"tune__{name}": options[name] for name in ("trials", "parallel", "ranks")}
    return overrides(options["settings"], **tune, train__dataset=options["dataset"])


def _launcher(site: SiteOptions, folder: Path, ranks: int) -> SiteLauncher:
    from clew.jobs.sites import site_launcher

    work = SiteWork("tune", folder, command_task(["tune", "run", "--resume", str(folder)]), workers=ranks)
    return site_launcher(site.profile, site.request(work))


def _executor(launcher: SiteLauncher, parallel: int, template: Template, study: Study) -> Executor:
    from clew.tuning.job_executor import JobExecutor

    return JobExecutor(study.folder, template, [Slot()] * parallel, launcher)
