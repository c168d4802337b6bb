"""Options that several verbs share, and how things are printed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

What = Annotated[
    str, typer.Argument(metavar="RECIPE", help="A recipe's name or file, a YAML with settings, or a run's folder.")
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="One setting, as train.epochs=5. Repeatable.")
]

console = Console(highlight=False)


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


def table(head: Iterable[str], rows: Iterable[Iterable[Any]], *, right: Iterable[int] = ()) -> Table:
    """A plain table; columns in `right` are numbers."""
    drawn = Table(box=None, pad_edge=False, header_style="bold")
    for place, name in enumerate(head):
        drawn.add_column(name, justify="right" if place in set(right) else "left")
    for row in rows:
        drawn.add_row(*map(str, row))
    return drawn


def overrides(settings: Iterable[str] | None, **options: Any) -> list[str]:
    """`--set` and the options that are settings too, as one list; an option that was not given adds nothing."""
    given = [f"{name.replace('__', '.')}={_text(value)}" for name, value in options.items() if value not in (None, ())]
    return [*(settings or ()), *given]


def _text(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(f"'{item}'" for item in value) + "]"
    return str(value)
