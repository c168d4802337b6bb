"""`clew serve`."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clew.cli.options import bold, console, program
from clew.errors import ConfigError

if TYPE_CHECKING:
    from clew.server.service import Service

Folder = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="Database and artefacts (default: the user's data folder)."),
]
DatabaseUrl = Annotated[
    str | None, typer.Option(metavar="URL", help="postgresql://USER@HOST/NAME (default: SQLite in the folder).")
]


def serve(
    folder: Folder = None,
    database: DatabaseUrl = None,
    store: Annotated[
        str | None, typer.Option(metavar="URL", help="Store for artefacts: s3://BUCKET/PLACE (default: in the folder).")
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="Address to listen on (default: 127.0.0.1, only this machine).")
    ] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0: any free one (default: 8470).")] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A YAML file with limits, retention and other settings.")
    ] = None,
    secure: Annotated[bool, typer.Option("--secure", help="The server is behind a proxy with TLS.")] = False,
    agent: Annotated[bool, typer.Option("--agent/--no-agent", help="Run your jobs on this machine too.")] = True,
    log: Annotated[str, typer.Option(help="debug, info (every request), warning or error.")] = "warning",
) -> None:
    """Start the server for runs, studies and jobs: a REST API and a dashboard at http://127.0.0.1:8470.

    \b
    Examples:
      clew serve
      clew serve --folder service --port 9000
      clew serve --store s3://experiment/clew
      clew serve --host 0.0.0.0 --secure --database postgresql://clew@db/clew

    The first start creates an administrator and prints the token. Ctrl-C stops the server; no data is
    lost, running jobs continue and report later, and waiting jobs wait for the next start.
    """
    start = import_server_name("clew.server.server", "serve")
    options = {"folder": folder, "database": database, "store": store, "host": host, "port": port}
    settings = service_config(config, **options, secure=secure or None)
    if log not in ("debug", "info", "warning", "error"):
        raise ConfigError(f"--log {log}: choose from debug, info, warning, error")
    import getpass

    _stopped(start(settings, user=getpass.getuser(), ready=_ready, log=log, agent=agent))


def _ready(service: Service, address: str, token: str | None) -> None:
    if token is not None:
        console.print(f"You are the administrator. Your token, shown this once: {bold(token)}")
        console.print(f"[dim]to record your trainings here:[/] {program()} login {address}")
    console.print(f"clew serves {bold(service.config.folder)} at {bold(address)}   [dim]Ctrl-C stops it[/]")


def _stopped(jobs: dict[str, int]) -> None:
    """Print what becomes of the jobs."""
    running, waiting = jobs.get("running", 0), jobs.get("waiting", 0)
    lines = ["The server has stopped; no job runs or waits." if not running + waiting else "The server has stopped."]
    if running:
        lines.append(f"Running jobs: {running}. Each continues, and reports when the server and its agent run again.")
    if waiting:
        lines.append(f"Waiting jobs: {waiting}. Each starts when the server and an agent run again.")
    for line in lines:
        console.print(line)


def import_server_name(module: str, name: str) -> Any:
    """Import a name of the server package.

    Raises:
        ConfigError: A package that the server needs is not installed.
    """
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("clew"):
            raise
        raise ConfigError(f"{error.name} is not installed; pip install 'clew[serve]'") from None


def service_config(file: Path | None, **options: Any) -> Any:
    """The settings of a server: a YAML file, overridden by options."""
    from clew.core.config import Document, read_document, validate, with_values
    from clew.server.config import ServiceConfig

    document = read_document(file) if file is not None else Document(source="the options")
    values = {name: str(value) if isinstance(value, Path) else value for name, value in options.items()}
    values = {name: value for name, value in values.items() if value is not None}
    return validate(ServiceConfig, with_values(document, values, "the options"))
