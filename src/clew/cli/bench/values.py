"""Options that several commands of `clew bench` have, and lists in options: values separated by commas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from clew.errors import ConfigError, nearest

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def parts(text: str) -> list[str]:
    """Return the parts of a text between commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def choices(text: str, option: str, allowed: Sequence[str]) -> list[str]:
    """Return the names between commas.

    Raises:
        ConfigError: A name is not allowed, or there is none.
    """
    names = parts(text)
    for name in names or [text]:
        if name not in allowed:
            raise ConfigError(f"{option} {name}: no such name{nearest(name, allowed)}")
    return names


def whole_numbers(text: str, option: str) -> list[int]:
    """Return the whole numbers between commas.

    Raises:
        ConfigError: A part is not a whole number.
    """
    try:
        return [int(part) for part in parts(text)]
    except ValueError:
        raise ConfigError(f"{option} {text}: expected whole numbers separated by commas, for example 1,2,4") from None
