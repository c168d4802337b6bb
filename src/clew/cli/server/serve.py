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

Folder = Annotated[Path | None, typer.Option(metavar="FOLDER", help="Database and artefacts (default: the user's).")]
DatabaseUrl = Annotated[
    str | None, typer.Option(metavar="URL", help="postgresql://USER@HOST/NAME (default: SQLite in the folder).")
]


def serve(
    folder: Folder = None,
    database: DatabaseUrl = None,
    store: Annotated[
        str | None, typer.Option(metavar="URL", help="s3://BUCKET/PLACE: artefacts lie there (default: in the folder).")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Where to listen. (default: 127.0.0.1, this machine alone)")] = None,
    port: Annotated[int | None, typer.Option(help="0: any that is free. (default: 8470)")] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A YAML with limits, retention and so on.")
    ] = None,
    secure: Annotated[bool, typer.Option("--secure", help="It stands behind TLS.")] = False,
    agent: Annotated[bool, typer.Option("--agent/--no-agent", help="Run your jobs on this machine too.")] = True,
    log: Annotated[str, typer.Option(help="debug, info (every request), warning or error.")] = "warning",
) -> None:
    """Serve runs, studies and jobs: a REST API and a dashboard, here at http://127.0.0.1:8470.

    \b
    Examples:
      clew serve
      clew serve --folder service --port 9000
      clew serve --store s3://experiment/clew
      clew serve --host 0.0.0.0 --secure --database postgresql://clew@db/clew

    The first start makes an administrator of you and prints the token. Ctrl-C stops it; nothing is lost.
    """
    work = installed("clew.server.server", "serve")
    given = {"folder": folder, "database": database, "store": store, "host": host, "port": port}
    settings = configured(config, **given, secure=secure or None)
    if log not in ("debug", "info", "warning", "error"):
        raise ConfigError(f"--log {log}: choose from debug, info, warning, error")
    import getpass

    work(settings, user=getpass.getuser(), ready=_ready, log=log, agent=agent)


def _ready(service: Service, address: str, token: str | None) -> None:
    if token is not None:
        console.print(f"You are the administrator. Your token, shown this once: {bold(token)}")
        console.print(f"[dim]so that what you train is recorded here:[/] {program()} login {address}")
    console.print(f"clew serves {bold(service.config.folder)} at {bold(address)}   [dim]Ctrl-C stops it[/]")


def installed(module: str, name: str) -> Any:
    """Something of the service's, or a word on what is not installed."""
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("clew"):
            raise
        raise ConfigError(f"{error.name} is not installed; pip install 'clew[serve]'") from None


def configured(file: Path | None, **options: Any) -> Any:
    """Settings of a server: a YAML, with options on top."""
    from clew.core.config import Document, read_document, validate, with_values
    from clew.server.config import ServiceConfig

    document = read_document(file) if file is not None else Document(source="the options")
    given = {name: str(value) if isinstance(value, Path) else value for name, value in options.items()}
    given = {name: value for name, value in given.items() if value is not None}
    return validate(ServiceConfig, with_values(document, given, "the options"))
