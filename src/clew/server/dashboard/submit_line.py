"""The line of `clew submit` that submits the same job as the form."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from clew.client.job import Submission
from clew.runs.comparison import flatten_settings


def submit_line(job: Submission, document: Mapping[str, Any]) -> str:
    """Return a command that submits a job from a shell.

    Args:
        job: The job.
        document: The settings that differ from the defaults, with the recipe.
    """
    words = ["clew", "submit"]
    words += ["--kind", job.kind] if job.kind != "train" else []
    words += [job.arguments[0] if job.kind == "script" else str(document["recipe"])]
    words += [*_options(job), *_settings(document)]
    words += ["--", *job.arguments[1:]] if job.kind == "script" and job.arguments[1:] else []
    return shlex.join(words)


def _options(job: Submission) -> Iterator[str]:
    resources = job.resources
    yield from ("--output", job.name)
    options: dict[str, Any] = {
        "dataset": job.dataset,
        "store": job.store,
        "group": job.group,
        "container": resources.container,
    }
    options |= {"cpus": resources.cpus if resources.cpus > 1 else None, "gpus": resources.gpus or None}
    options |= {"nodes": resources.nodes if resources.nodes > 1 else None}
    options |= {"workers": resources.workers if job.kind == "script" and resources.workers > 1 else None}
    options |= {"memory": None if resources.memory is None else f"{resources.memory / 1e9:.9g}G"}
    options |= {"wall-time": None if resources.wall_time is None else f"{resources.wall_time / 60:.9g}m"}
    options |= {"priority": job.priority or None, "requeue": job.requeue or None}
    for name, value in options.items():
        if value is not None:
            yield from (f"--{name}", str(value))
    if job.trials_as_jobs:
        yield "--trials-as-jobs"


def _settings(document: Mapping[str, Any]) -> Iterator[str]:
    for name, value in flatten_settings({key: each for key, each in document.items() if key != "recipe"}):
        plain = isinstance(value, str) and "\n" not in value and yaml.safe_load(value or "null") == value
        yield from ("--set", f"{name}={value if plain else json.dumps(value, ensure_ascii=False)}")
