"""Lists that commands print: sorted by any column, with chosen columns, or as JSON for scripts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import typer

from clew.cli.text_table import Column, line_width, write
from clew.errors import ConfigError, nearest

SortOption = Annotated[
    str, typer.Option("--sort", metavar="NAME", help="Sort by a column; -NAME: the largest or last first.")
]
ColumnsOption = Annotated[str, typer.Option("--columns", metavar="A,B", help="Only these columns, in this order.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print all facts as JSON.")]
Row = Mapping[str, Any]


def print_list(
    rows: Sequence[Row],
    columns: Sequence[str],
    *,
    sort: str = "",
    chosen: str = "",
    as_json: bool = False,
    texts: Mapping[str, Callable[[Any], str]] | None = None,
) -> None:
    """Print one line per row; columns that do not fit the terminal are dropped, the last ones first.

    Args:
        rows: Facts by name: all that JSON shows.
        columns: The facts that have a column.
        sort: The fact to sort by, with a minus in reverse; empty: the order of `rows`.
        chosen: Columns that the user chose, separated by commas.
        as_json: Print JSON instead.
        texts: How to write some facts.

    Raises:
        ConfigError: an unknown name in `sort` or `chosen`.
    """
    known = list(dict.fromkeys([*columns, *(name for row in rows for name in row)]))
    names = [name.strip() for name in chosen.split(",") if name.strip()] or list(columns)
    for option, name in [("--sort", sort.removeprefix("-")), *(("--columns", name) for name in names)]:
        if name and name not in known:
            raise ConfigError(f"{option} {name}: no such column{nearest(name, known)}")
    ordered = _sorted(rows, sort) if sort else list(rows)
    if as_json:
        typer.echo(json.dumps([dict(row) for row in ordered], indent=1, default=str))
        return
    cells = {name: [_text(row.get(name), name, texts or {}) for row in ordered] for name in names}
    numbers = {name for name in names if any(isinstance(row.get(name), (int, float)) for row in rows)}
    write(
        [Column(name, cells[name], rank=place, right=name in numbers) for place, name in enumerate(names)],
        width=line_width(),
    )


def _sorted(rows: Sequence[Row], sort: str) -> list[Row]:
    """Sort rows; those without the value come last."""
    name = sort.removeprefix("-")
    present = [row for row in rows if row.get(name) not in (None, "")]
    absent = [row for row in rows if row.get(name) in (None, "")]
    mixed = len({isinstance(row[name], str) for row in present}) > 1
    ordered = sorted(present, key=lambda row: str(row[name]) if mixed else row[name], reverse=sort.startswith("-"))
    return [*ordered, *absent]


def _text(value: Any, name: str, texts: Mapping[str, Callable[[Any], str]]) -> str:
    if value is None:
        return ""
    if name in texts:
        return texts[name](value)
    if isinstance(value, float):
        return f"{value:.5g}"
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
