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

from clew.cli.bench import bench
from clew.cli.data import cache, data, prepare
from clew.cli.inference import evaluate, export, generate, model, predict
from clew.cli.jobs import agent, doctor, jobs, site, submit, work_verbs
from clew.cli.runs import compare, runs, trace
from clew.cli.server import login, serve, token
from clew.cli.start import config, demo, init
from clew.cli.training import train, worker
from clew.cli.tuning import tune
from clew.core.disk_errors import disk_error_text, exit_safely, final_path, quiet_disk_errors
from clew.core.process import start_helpers_safely
from clew.errors import ClewError, JobError
from clew.recipe_errors import recipe_errors
from clew.storage.locations import mask_secrets
from clew.version import __version__

app = typer.Typer(
    name="clew",
    help="High-energy-physics machine learning from raw events to trained, tuned and benchmarked models.",
    epilog="Start with: clew demo",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
app.command()(demo.demo)
app.command()(init.init)
app.command()(prepare.prepare)
app.command()(train.train)
app.command()(worker.worker)
app.command()(agent.agent)
app.command()(submit.submit)
app.command()(jobs.jobs)
app.command()(work_verbs.follow)
app.command()(work_verbs.logs)
app.command()(work_verbs.stop)
app.command()(jobs.retry)
app.command()(jobs.requeue)
app.command()(evaluate.evaluate)
app.command()(predict.predict)
app.command()(export.export)
app.command()(generate.generate)
app.command()(trace.trace)
app.command()(compare.compare)
app.command()(serve.serve)
app.command()(login.login)
app.command()(login.logout)
app.add_typer(tune.app, name="tune")
app.add_typer(runs.app, name="runs")
app.add_typer(token.app, name="token")
app.add_typer(bench.app, name="bench")
app.add_typer(site.app, name="site")
app.command()(doctor.doctor)
app.add_typer(data.app, name="data")
app.add_typer(model.app, name="model")
app.add_typer(cache.app, name="cache")
app.add_typer(config.app, name="config")


def _version(requested: bool) -> None:
    if requested:
        typer.echo(f"clew {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and stop.")
    ] = False,
) -> None:
    pass


@functools.cache
def command() -> Any:
    """All commands as one click command. It is built once, before jobs are forked from the process."""
    every = typer.main.get_command(app)
    _hide_types_of_flags(every)
    return every


def _hide_types_of_flags(group: Any) -> None:
    """Remove `<bool>` from the help of options that take no value."""
    for option in (*group.params, group.get_help_option(typer.Context(group))):
        if getattr(option, "is_flag", False):
            option.metavar = ""
    for each in getattr(group, "commands", {}).values():
        _hide_types_of_flags(each)


def run() -> None:
    """The console script. Exit codes: 0, 2 for a mistake of the user, 1 for another error, 130 for Ctrl-C."""
    # torch's threads would spin while they wait, which makes small steps five times slower on a busy machine
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    start_helpers_safely()
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    report_errors(lambda: command()(arguments, standalone_mode=True), debug="--debug" in sys.argv)


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
        errors.print(f"[bold red]clew:[/] {escape(mask_secrets(str(error)))}")
        if error.exit_code == 1 and not isinstance(error, JobError):
            errors.print("[dim]Run it again with --debug to see where it happened.[/]")
        exit_safely(error, error.exit_code)
        sys.exit(error.exit_code)
    except SystemExit as end:
        if end.code == 130:  # typer exits with this code on Ctrl-C
            errors.print("[yellow]clew: interrupted[/]")
        raise
    except KeyboardInterrupt:
        errors.print("[yellow]clew: interrupted[/]")
        sys.exit(130)
    except OSError as error:
        message = disk_error_text(error)
        if debug or (error.filename is None and not message):
            raise
        message = message or f"{final_path(Path(str(error.filename)))}: {error.strerror}"
        errors.print(f"[bold red]clew:[/] {escape(message)}")
        sys.exit(2)
    except Exception as error:
        if debug:
            raise
        where = traceback.extract_tb(error.__traceback__)[-1]
        message = f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})"
        errors.print(f"[bold red]clew:[/] {escape(mask_secrets(message))}")
        errors.print("[dim]This is an error in clew. Run it again with --debug to see where it happened.[/]")
        sys.exit(1)
