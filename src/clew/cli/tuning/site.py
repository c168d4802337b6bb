"""`clew tune run --on SITE`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clew.cli.jobs.on_site import SiteOptions, SiteWork
from clew.cli.options import overrides
from clew.errors import ConfigError, nearest
from clew.jobs.launchers.launcher import Slot

if TYPE_CHECKING:
    from clew.jobs.sites import SiteLauncher
    from clew.tuning.executor import Executor
    from clew.tuning.space import Template
    from clew.tuning.study import Study

_PARALLEL = 4
"""Trials at a time where no number is given: a queue would take any, a search learns from those that have ended."""


def plan(
    asked: SiteOptions,
    spread: str,
    *,
    recipe: str | None,
    trials: int | None,
    parallel: int | None,
    ranks: int | None,
    dataset: str | None,
    output: str | None,
    settings: list[str] | None,
    resume: str | None,
    join: bool,
    **others: Any,
) -> SiteWork | None:
    """Run the trials as jobs and return nothing; or say what is handed in."""
    from clew.cli.tuning import run
    from clew.runs.folder import next_run_path
    from clew.settings import load_settings
    from clew.tuning.api import STUDIES, open_or_create

    if (recipe is None) == (resume is None):
        raise ConfigError("name a recipe or a YAML with a section `tune`, or a study (--resume STUDY)")
    given = overrides(settings, tune__trials=trials, tune__parallel=parallel, tune__ranks=ranks, train__dataset=dataset)
    source = str(recipe or f"{resume}/config.yaml")
    template = load_settings(source, given)
    if asked.site.scheduler == "panda":
        from clew.cli.jobs.panda import hand_in_study

        hand_in_study(asked, template, source, given)
        return None
    config = template.tune
    if config is None:
        raise ConfigError(f"{source}: no section `tune`")
    makes = Path(resume or output or next_run_path(STUDIES, Path(template.recipe.location).stem))
    many = config.parallel or _PARALLEL
    if spread == "trials":
        batch = _batch(asked, makes, config.ranks)
        run.coordinate(source, given, str(makes), join=join, executor=partial(_jobs, batch, many))
        return None
    here = [] if resume or output else ["--output", str(makes)]
    if spread == "block":
        return SiteWork("tune", makes, many * config.ranks + 1, here, requeue=True)
    if spread != "array":
        raise ConfigError(f"--as {spread}{nearest(spread, ('trials', 'array', 'block'))}")
    open_or_create(template, makes)
    needs = {"array": many, "cpus": config.ranks * (asked.given["cpus"] or asked.site.cpus)}
    return SiteWork(
        "tune", makes, command=["tune", "run", "--resume", str(makes), "--join", "--parallel", "1"], needs=needs
    )


def _batch(asked: SiteOptions, makes: Path, ranks: int) -> SiteLauncher:
    from clew.jobs.sites import site_launcher

    return site_launcher(asked.site, asked.needs(SiteWork("tune", makes, ranks)))


def _jobs(batch: SiteLauncher, many: int, template: Template, study: Study) -> Executor:
    from clew.tuning.job_executor import JobExecutor

    return JobExecutor(study.folder, template, [Slot()] * many, batch)
