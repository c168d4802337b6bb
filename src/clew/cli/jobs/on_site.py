"""`--on SITE`: the same command as a job of a cluster's."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from clew.errors import ConfigError

if TYPE_CHECKING:
    from clew.jobs.sites import BatchRequest, Site

_PANEL: Any = {"rich_help_panel": "On a cluster"}
On = Annotated[str | None, typer.Option(metavar="SITE", help="Hand it in there (`clew site list`).", **_PANEL)]
_OPTIONS: dict[str, Any] = {
    "on": On,
    "nodes": Annotated[int | None, typer.Option(min=1, help="Nodes (default: as few as fit).", **_PANEL)],
    "cpus": Annotated[int | None, typer.Option(min=1, help="Cores for each process.", **_PANEL)],
    "gpus": Annotated[int | None, typer.Option(min=0, help="GPUs on each node.", **_PANEL)],
    "memory": Annotated[str | None, typer.Option(help="On each node: 16G.", **_PANEL)],
    "wall_time": Annotated[str | None, typer.Option(help="How long a job may take: 30m, 12h.", **_PANEL)],
    "after": Annotated[
        list[str] | None,
        typer.Option(metavar="JOB", help="Begin when this has ended well: its number, or what it makes.", **_PANEL),
    ],
    "requeue": Annotated[
        bool | None,
        typer.Option("--requeue/--no-requeue", help="Go back to the queue at the end of the wall time.", **_PANEL),
    ],
    "follow": Annotated[
        bool | None,
        typer.Option("--follow/--no-follow", help="Watch it (default: in a terminal); Ctrl-C leaves it.", **_PANEL),
    ],
    "dry_run": Annotated[bool, typer.Option("--dry-run", help="Print what would be handed in.", **_PANEL)],
}
_DEFAULTS = {"dry_run": False}
_FLAGS = ("--requeue", "--no-requeue", "--follow", "--no-follow", "--dry-run")


@dataclass(frozen=True)
class SiteWork:
    """What a verb hands in: the number of ranks, what comes of it, and arguments beside those that were given."""

    verb: str
    makes: Path
    ranks: int = 1
    added: list[str] = field(default_factory=list)
    command: list[str] | None = None
    """In the place of what was given."""
    requeue: bool = False
    needs: dict[str, Any] = field(default_factory=dict)
    """More of `BatchRequest`."""
    then: list[str] | None = None
    """Another command, handed in to follow it."""


@dataclass(frozen=True)
class SiteOptions:
    """The site, and what the options ask it for."""

    name: str
    site: Site
    given: dict[str, Any]

    def needs(self, work: SiteWork) -> BatchRequest:
        from clew.core.config import Document, validate
        from clew.jobs.sites import BatchRequest

        names = ("nodes", "cpus", "gpus", "memory", "wall_time", "after")
        told = {name: self.given[name] for name in names if self.given[name] is not None}
        own = {"name": work.makes.name or work.verb, "ranks": work.ranks, "requeue": self._requeued(work)}
        return validate(BatchRequest, Document({**own, **told, **work.needs}, source=f"--on {self.name}"))

    def _requeued(self, work: SiteWork) -> bool:
        return work.requeue if self.given["requeue"] is None else bool(self.given["requeue"])

    def ranks(self, asked: int) -> int:
        """As many as were asked for; where that is one and there are several nodes, one a GPU or else one a node."""
        nodes = self.given["nodes"] or 1
        gpus = self.site.gpus if self.given["gpus"] is None else self.given["gpus"]
        return asked if asked > 1 or nodes == 1 else nodes * max(1, gpus)


def on_site(plan: Callable[..., SiteWork | None]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a verb the options of sites. `plan(asked, **options)` says what is handed in; None: it was seen to."""

    def decorate(verb: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(verb)
        def wrapped(**options: Any) -> None:
            given = {name: options.pop(name) for name in _OPTIONS}
            if given["on"] is None:
                _refuse(given)
                return verb(**options)
            from clew.jobs import sites as sites

            asked = SiteOptions(given["on"], sites.load_site(given["on"]), given)
            work = plan(asked, **options)
            if work is not None:
                from clew.cli.jobs.submitted import hand_in

                hand_in(asked, work, arguments())
            return None

        hints = get_type_hints(verb, include_extras=True)
        hints.pop("return", None)
        own = [
            p.replace(annotation=hints[p.name], kind=p.KEYWORD_ONLY)
            for p in inspect.signature(verb).parameters.values()
        ]
        more = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=_DEFAULTS.get(name), annotation=kind)
            for name, kind in _OPTIONS.items()
        ]
        wrapped.__signature__ = inspect.Signature([*own, *more])  # type: ignore[attr-defined]
        wrapped.__annotations__ = {**hints, **_OPTIONS}
        del wrapped.__wrapped__
        return wrapped

    return decorate


def _refuse(given: dict[str, Any]) -> None:
    for name, value in given.items():
        if value not in (None, False):
            raise ConfigError(f"--{name.replace('_', '-')} goes with --on SITE")


def arguments() -> list[str]:
    """This command without what is the site's."""
    taken = {f"--{name.replace('_', '-')}" for name in _OPTIONS}
    kept, skip = [], False
    for word in sys.argv[1:]:
        name = word.partition("=")[0]
        if not skip and name not in (*taken, *_FLAGS):
            kept.append(word)
        skip = not skip and name in taken and word not in _FLAGS and "=" not in word
    return _without_spread([word for word in kept if word != "--debug"])


def _without_spread(words: list[str]) -> list[str]:
    """`--as` says how it is handed in; what is handed in needs it no more."""
    kept = [word for n, word in enumerate(words) if word != "--as" and (n == 0 or words[n - 1] != "--as")]
    return [word for word in kept if not word.startswith("--as=")]
