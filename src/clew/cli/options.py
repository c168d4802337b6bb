"""Options that several verbs share, and how things are printed."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import warnings
from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from clew.core.config import parse_bytes as parse_bytes
from clew.core.config import parse_seconds as parse_seconds

What = Annotated[
    str, typer.Argument(metavar="RECIPE", help="A recipe's name or file, a YAML with settings, or a run's folder.")
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="One setting, as train.epochs=5. Repeatable.")
]

console = Console(highlight=False, soft_wrap=True)


def progress() -> Progress:
    """A bar with a count, an estimate and a free note; silent where nobody watches."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("[dim]{task.fields[note]}"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


@contextlib.contextmanager
def printed_warnings() -> Iterator[None]:
    """Print the library's warnings as lines like all others."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: console.print(f"[yellow]clew: {escape(str(message))}[/]")
        yield


def table(head: Iterable[str], rows: Iterable[Iterable[Any]], *, right: Iterable[int] = ()) -> Table:
    """A plain table; columns in `right` are numbers."""
    drawn = Table(box=None, pad_edge=False, header_style="bold")
    for place, name in enumerate(head):
        drawn.add_column(
            name, justify="right" if place in set(right) else "left", no_wrap=place == 0, overflow="ellipsis"
        )
    for row in rows:
        drawn.add_row(*(escape(str(cell)) for cell in row))
    return drawn


def overrides(settings: Iterable[str] | None, **options: Any) -> list[str]:
    """`--set` and the options that are settings too, as one list; an option that was not given adds nothing."""
    given = [f"{name.replace('__', '.')}={_yaml(value)}" for name, value in options.items() if value not in (None, ())]
    return [*(settings or ()), *given]


def program() -> str:
    """How the reader can call clew again: by its name, or by the path it was called by where that is not found."""
    return "clew" if shutil.which("clew") else sys.argv[0]


def bold(name: object) -> str:
    """A path or a name to be printed, whatever brackets are in it."""
    return f"[bold]{escape(str(name))}[/]"


def _yaml(value: Any) -> str:
    """JSON, which is YAML: a folder called 2024 stays text."""
    return json.dumps(value, ensure_ascii=False)
