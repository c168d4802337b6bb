"""Options that several commands share, and functions that print."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import json
import shutil
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, get_type_hints

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from clew.core.config import OptionSetting
from clew.core.config import parse_bytes as parse_bytes
from clew.core.config import parse_seconds as parse_seconds
from clew.runs.live_view import progress_bar

What = Annotated[
    str, typer.Argument(metavar="RECIPE", help="A recipe's name or file, a YAML with settings, or a run's folder.")
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="One setting, as train.epochs=5. Repeatable.")
]

_OTHER_OPTIONS = {"time_limit_minutes": "--time-limit", "ranks": "--ranks-per-trial"}
"""Options whose names differ from their settings."""
console = Console(highlight=False, soft_wrap=True)


def takes_options(options: type[Any]) -> Callable[[Callable[[Any], None]], Callable[..., None]]:
    """Make a command of a function that takes one options object.

    Args:
        options: A dataclass. Its fields become the arguments and options of the command.
    """

    def decorate(verb: Callable[[Any], None]) -> Callable[..., None]:
        @functools.wraps(verb)
        def wrapped(**values: Any) -> None:
            verb(options(**values))

        hints = get_type_hints(options, include_extras=True)
        missing = inspect.Parameter.empty
        set_parameters(
            wrapped,
            [
                inspect.Parameter(
                    each.name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=missing if each.default is dataclasses.MISSING else each.default,
                    annotation=hints[each.name],
                )
                for each in dataclasses.fields(options)
            ],
        )
        return wrapped

    return decorate


def set_parameters(wrapped: Any, parameters: list[inspect.Parameter]) -> None:
    """Give a wrapper of a command the parameters that typer reads."""
    wrapped.__signature__ = inspect.Signature(parameters)
    wrapped.__annotations__ = {each.name: each.annotation for each in parameters}
    del wrapped.__wrapped__


def progress() -> Progress:
    """A progress bar with a count, the time left and a note. It prints nothing outside a terminal."""
    return progress_bar(console)


def table(head: Iterable[str], rows: Iterable[Iterable[Any]], *, right: Iterable[int] = ()) -> Table:
    """A table without borders; the columns whose indices are in `right` are aligned to the right."""
    grid = Table(box=None, pad_edge=False, header_style="bold")
    for index, name in enumerate(head):
        grid.add_column(
            name, justify="right" if index in set(right) else "left", no_wrap=index == 0, overflow="ellipsis"
        )
    for row in rows:
        grid.add_row(*(escape(str(cell)) for cell in row))
    return grid


def overrides(settings: Iterable[str] | None, **options: Any) -> list[str]:
    """`--set` and the options that are settings too, as one list; an option that is None adds nothing.

    Args:
        settings: The values of `--set`.
        **options: Values by setting, with `__` between the parts of a key: `train__workers`.
    """
    chosen = [
        OptionSetting(f"{name.replace('__', '.')}={_yaml(value)}", _option_text(name, value))
        for name, value in options.items()
        if value not in (None, ())
    ]
    return [*(settings or ()), *chosen]


def _option_text(name: str, value: Any) -> str:
    """Return an option as the user wrote it, for messages."""
    setting = name.rpartition("__")[2]
    if setting in _OTHER_OPTIONS:
        return _OTHER_OPTIONS[setting]
    option = f"--{setting.replace('_', '-')}"
    return f"{option} {value}" if isinstance(value, (str, int, float)) else option


def program() -> str:
    """The command that calls clew again: its name if it is on the path, else the path it was called by."""
    return "clew" if shutil.which("clew") else sys.argv[0]


@contextlib.contextmanager
def printed_warnings() -> Iterator[None]:
    """Print the library's warnings as lines like all others."""
    from clew.data.readers import DataWarning

    with warnings.catch_warnings():
        warnings.simplefilter("default", DataWarning)
        warnings.showwarning = lambda message, *_, **__: console.print(f"[yellow]clew: {escape(str(message))}[/]")
        yield


def bold(name: object) -> str:
    """A path or a name in bold; brackets in it are printed as they are."""
    return f"[bold]{escape(str(name))}[/]"


def _yaml(value: Any) -> str:
    """A value as JSON, which is YAML too: a folder called 2024 stays text."""
    return json.dumps(value, ensure_ascii=False)
