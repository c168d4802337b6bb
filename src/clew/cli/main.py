"""`clew`: the commands, and how exceptions are printed."""

from __future__ import annotations

import functools
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from clew.cli.commands import Commands
from clew.core.disk_errors import disk_error_text, exit_safely, final_path, quiet_disk_errors
from clew.core.process import start_helpers_safely
from clew.errors import ClewError, JobError
from clew.recipe_errors import recipe_errors
from clew.version import __version__

app = typer.Typer(
    name="clew",
    cls=Commands,
    help="High-energy-physics machine learning from raw events to trained, tuned and benchmarked models.",
    epilog="Start with: clew demo",
    invoke_without_command=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def _version(requested: bool) -> None:
    if requested:
        typer.echo(f"clew {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and stop.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        from clew.cli.start.greeting import greet

        greet()


@functools.cache
def command() -> Any:
    """All commands as one click command. It is built once, before jobs are forked from the process."""
    return typer.main.get_command(app)


def run() -> None:
    """The console script. Exit codes: 0, 2 for a mistake of the user, 1 for another error, 130 for Ctrl-C."""
    # torch's threads would spin while they wait, which makes small steps five times slower on a busy machine
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    start_helpers_safely()
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    report_errors(lambda: command()(arguments, standalone_mode=True), debug="--debug" in sys.argv)


def _masked(text: str) -> str:
    from clew.storage.locations import mask_secrets

    return mask_secrets(text)


def report_errors(work: Callable[[], object], *, debug: bool = False) -> None:
    """Call `work`; print an error as one line and exit with its code. `debug`: raise it instead."""
    errors = Console(stderr=True, soft_wrap=True, highlight=False)
    quiet_disk_errors()
    try:
        with recipe_errors():
            work()
    except ClewError as error:
        if debug and not getattr(error, "trace", ""):
            raise
        if debug:
            errors.print(escape(str(vars(error)["trace"])))
        errors.print(f"[bold red]clew:[/] {escape(_masked(str(error)))}")
        if error.exit_code == 1 and not isinstance(error, JobError):
            errors.print("[dim]Run it again with --debug to see where it happened.[/]")
        exit_safely(error, error.exit_code)
        sys.exit(error.exit_code)
    except SystemExit as end:
        # typer exits so on Ctrl-C; `clew follow` exits with the same code for a cancelled job, which has its own line
        if end.code == 130 and isinstance(getattr(end.__context__, "__cause__", None), KeyboardInterrupt):
            errors.print("[yellow]clew: interrupted[/]")
        raise
    except KeyboardInterrupt:
        errors.print("[yellow]clew: interrupted[/]")
        sys.exit(130)
    except Exception as error:
        if debug:
            raise
        message, code = _unexpected(error)
        errors.print(f"[bold red]clew:[/] {escape(_masked(message))}")
        if code == 1:
            errors.print("[dim]This is an error in clew. Run it again with --debug to see where it happened.[/]")
        sys.exit(code)


def _unexpected(error: Exception) -> tuple[str, int]:
    """Return the message and the exit code of an error that is not clew's: 2 if a file or a disk is the cause."""
    if isinstance(error, OSError):
        message = disk_error_text(error)
        if not message and error.filename is not None:
            message = f"{final_path(Path(str(error.filename)))}: {_reason(error)}"
        if message:
            return message, 2
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})", 1


def _reason(error: OSError) -> str:
    if isinstance(error, FileExistsError) and Path(str(error.filename)).is_file():
        return "this is a file, and a folder is needed; name another one"
    if isinstance(error, NotADirectoryError):
        return "a part of this path is a file, and a folder is needed; name another one"
    return str(error.strerror)
