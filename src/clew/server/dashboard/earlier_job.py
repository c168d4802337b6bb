"""Fills the submit form with an earlier job, to submit it again with changes."""

from __future__ import annotations

import shlex
from typing import Any

from clew.client.job import JobDetail
from clew.recipe import shipped
from clew.server.dashboard.own_code import FILE_PREFIX
from clew.server.dashboard.submit_form import KINDS, OWN
from clew.server.problems import RequestError
from clew.settings import SECTIONS


def can_be_changed(job: Any) -> bool:
    """Return whether the form can show a job: its kind has a form, and its recipe is known or was sent with it."""
    if job.kind == "script":
        return True
    recipe = str(job.spec.get("recipe", "")).partition(":")[0]
    return job.kind in KINDS and not job.arguments and (recipe in shipped() or recipe in job.files)


def earlier_job(job: JobDetail) -> tuple[str, str, dict[str, Any], dict[str, str]]:
    """Return kind, recipe, settings and further fields of the form for an earlier job.

    Raises:
        RequestError: the form cannot show this kind of job.
    """
    if not can_be_changed(job):
        raise RequestError(422, f"a job of kind {job.kind} cannot be changed here", hint="use clew submit")
    resources = job.resources
    values = {
        "name": job.name,
        "dataset": job.dataset if job.kind != "prepare" else None,
        "store": job.store,
        "nodes": resources.nodes,
        "cpus": resources.cpus,
        "gpus": resources.gpus,
        "minutes": None if resources.wall_time is None else f"{resources.wall_time / 60:.9g}",
        "memory_gb": None if resources.memory is None else f"{resources.memory / 1e9:.9g}",
        "priority": job.priority,
        "requeue": job.requeue,
        "group": job.group,
        "container": resources.container,
        "trials_as_jobs": "true" if job.study is not None and job.kind == "tune" else "false",
    }
    recipe, settings = str(job.spec.get("recipe", "")), dict(job.spec)
    if job.files:
        values |= {"main": job.arguments[0] if job.kind == "script" else recipe.partition(":")[0]}
        values |= {"arguments": shlex.join(job.arguments[1:]), "workers": resources.workers}
        recipe_settings = {name: value for name, value in settings.items() if name not in ("recipe", *SECTIONS)}
        settings |= {"settings": recipe_settings} if recipe_settings else {}
        recipe = OWN
    fields = {f"job.{name}": str(value) for name, value in values.items() if value is not None}
    return job.kind, recipe, settings, {**fields, **{f"{FILE_PREFIX}{name}": text for name, text in job.files.items()}}
