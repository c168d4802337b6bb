"""Wrong options and arguments, as one line like every other mistake of a user."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer

from clew.core.validation_text import validation_text
from clew.errors import ConfigError

_USAGE_ERROR: Any = typer.BadParameter.__bases__[0]
"""What typer raises for options and arguments. Typer does not export it."""


@contextmanager
def usage_errors() -> Iterator[None]:
    """Raise `ConfigError` in place of an error of typer; without it, typer prints a box of several lines.

    Raises:
        ConfigError: An option or an argument is wrong, missing or not known.
    """
    try:
        yield
    except _USAGE_ERROR as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # a group without a command: typer prints its help
            raise
        raise ConfigError(_text(error)) from None


def _text(error: Any) -> str:
    details = getattr(error.__cause__, "errors", None)  # of pydantic, which checks the values
    if details is not None and error.param is not None:
        detail = details()[0]
        message = f"{max(error.param.opts, key=len)} {detail['input']}: {_lower(validation_text(detail))}"
    else:
        message = _lower(error.format_message().rstrip("."))
    command = "" if error.ctx is None else error.ctx.command_path
    return f"{command}: {message}; see {command} --help" if command else f"{message}; see --help"


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
