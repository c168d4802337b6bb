"""`--on SITE`: the same command as a job of a cluster."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from clew.cli.options import set_parameters
from clew.errors import ConfigError
from clew.jobs.task import Task

if TYPE_CHECKING:
    from clew.jobs.sites import BatchRequest, Site

_PANEL: Any = {"rich_help_panel": "On a cluster"}
On = Annotated[str | None, typer.Option(metavar="SITE", help="Submit it there (`clew site list`).", **_PANEL)]
_OPTIONS: dict[str, Any] = {
    "on": On,
    "nodes": Annotated[int | None, typer.Option(min=1, help="Nodes (default: the scheduler chooses).", **_PANEL)],
    "cpus": Annotated[int | None, typer.Option(min=1, help="Cores per worker.", **_PANEL)],
    "gpus": Annotated[int | None, typer.Option(min=0, help="GPUs per worker.", **_PANEL)],
    "memory": Annotated[str | None, typer.Option(help="Memory per worker: 16G.", **_PANEL)],
    "wall_time": Annotated[str | None, typer.Option(help="The longest time a job may take: 30m, 12h.", **_PANEL)],
    "container": Annotated[str | None, typer.Option(metavar="IMAGE", help="Run it in this image.", **_PANEL)],
    "after": Annotated[
        list[str] | None,
        typer.Option(metavar="JOB", help="Start when this job has succeeded: its number, or its output.", **_PANEL),
    ],
    "requeue": Annotated[
        bool | None,
        typer.Option("--requeue/--no-requeue", help="Return to the queue at the end of the wall time.", **_PANEL),
    ],
    "follow": Annotated[
        bool | None,
        typer.Option("--follow/--no-follow", help="Watch it (default: in a terminal); Ctrl-C leaves it.", **_PANEL),
    ],
    "dry_run": Annotated[bool, typer.Option("--dry-run", help="Print what would be submitted.", **_PANEL)],
}
_DEFAULTS = {"dry_run": False}


@dataclass(frozen=True)
class SiteWork:
    """What a verb submits."""

    verb: str
    output: Path
    """The folder of the run, dataset or study that it makes."""
    task: Task
    workers: int = 1
    """Processes that the scheduler starts."""
    requeue: bool = False
    request: dict[str, Any] = field(default_factory=dict)
    """More fields of the `BatchRequest`."""
    then: Task | None = None
    """Another task, submitted to follow it."""


@dataclass(frozen=True)
class SiteOptions:
    """A site, and the options that a command gave for it."""

    name: str
    profile: Site
    values: dict[str, Any]

    def request(self, work: SiteWork) -> BatchRequest:
        """What the scheduler is asked for."""
        from clew.core.config import Document, validate
        from clew.jobs.sites import BatchRequest

        names = ("nodes", "cpus", "gpus", "memory", "wall_time", "container", "after")
        options = {name: self.values[name] for name in names if self.values[name] is not None}
        requeue = work.requeue if self.values["requeue"] is None else bool(self.values["requeue"])
        base = {"name": work.output.name or work.verb, "workers": work.workers, "requeue": requeue}
        return validate(BatchRequest, Document({**base, **options, **work.request}, source=f"--on {self.name}"))

    def workers(self, requested: int) -> int:
        """The number of workers: as requested; if that is one, on several nodes, those that fill the nodes."""
        nodes = self.values["nodes"] or 1
        return requested if requested > 1 or nodes == 1 else nodes * self.profile.workers_per_node


def on_site(plan: Callable[..., SiteWork | None]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a verb the options of sites.

    Args:
        plan: `plan(site, **options)` returns what is submitted; None: it has done that itself.
    """

    def decorate(verb: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(verb)
        def wrapped(**options: Any) -> None:
            values = {name: options.pop(name) for name in _OPTIONS}
            if values["on"] is None:
                _refuse(values)
                return verb(**options)
            from clew.cli.jobs.submitted import submit_work
            from clew.jobs.sites import load_site

            site = SiteOptions(values["on"], load_site(values["on"]).with_image(values["container"]), values)
            work = plan(site, **options)
            if work is not None:
                submit_work(site, work)
            return None

        hints = get_type_hints(verb, include_extras=True)
        hints.pop("return", None)
        parameters = [
            p.replace(annotation=hints[p.name], kind=p.KEYWORD_ONLY)
            for p in inspect.signature(verb).parameters.values()
        ]
        more = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=_DEFAULTS.get(name), annotation=kind)
            for name, kind in _OPTIONS.items()
        ]
        set_parameters(wrapped, [*parameters, *more])
        return wrapped

    return decorate


def _refuse(values: dict[str, Any]) -> None:
    for name, value in values.items():
        if value not in (None, False):
            raise ConfigError(f"--{name.replace('_', '-')} goes with --on SITE")
