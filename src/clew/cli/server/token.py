"""`clew token`."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clew.cli.listing import ColumnsOption, JsonOption, SortOption, print_list
from clew.cli.options import bold, console, parse_seconds
from clew.cli.server.serve import DatabaseUrl, Folder, import_server_name, service_config
from clew.errors import ConfigError

if TYPE_CHECKING:
    from clew.client.connection import Connection

app = typer.Typer(help="Tokens for the service: create, list, revoke.", no_args_is_help=True)
_SCOPES = ("read", "write", "submit", "agent", "admin")


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Name of the token: laptop, cluster, ...")],
    scope: Annotated[
        list[str] | None, typer.Option(help="read, write, submit (with write and read), agent, admin. Repeatable.")
    ] = None,
    expires: Annotated[str, typer.Option(metavar="TIME|never", help="Lifetime: 12h, 90d, never.")] = "90d",
    user: Annotated[str | None, typer.Option(help="Create it for another user (administrators only).")] = None,
    folder: Folder = None,
    database: DatabaseUrl = None,
) -> None:
    """Create a token and print it. It is printed only once. By default it may submit, write and read.

    \b
    Examples:
      clew token create laptop
      clew token create monitoring --scope read --expires 365d
      clew token create cluster --scope agent --user ada
      clew token create ada --user ada --scope admin --folder service

    With --folder (or --database) the database is changed directly while the server is not running. So an administrator
    can be created before other people can reach the server. A user that does not exist is created.
    """
    scopes = scope or ["submit"]
    wrong = [each for each in scopes if each not in _SCOPES]
    if wrong:
        raise ConfigError(f"--scope {wrong[0]}: choose from {', '.join(_SCOPES)}")
    seconds = None if expires == "never" else parse_seconds(expires, "--expires")
    if folder is not None or database is not None:
        text = _on_database(service_config(None, folder=folder, database=database), name, scopes, seconds, user)
    else:
        body = {"name": name, "scopes": scopes, "user": user, "days": None if seconds is None else seconds / 86400}
        with _connect() as connection:
            text = connection.call("POST", "/tokens", body=body, repeatable=False)["token"]
    console.print(bold(text))
    typer.secho("This is the only time it is shown.", dim=True, err=True)


@app.command("list")
def list_(sort: SortOption = "", columns: ColumnsOption = "", as_json: JsonOption = False) -> None:
    """List your tokens, without their secrets.

    \b
    Examples:
      clew token list
      clew token list --sort expires --json
    """
    with _connect() as connection:
        tokens = connection.call("GET", "/tokens")
    rows = [{**token, "starts with": f"{token['hint']}…", "state": _state(token)} for token in tokens]
    shown = ("id", "name", "starts with", "scopes", "state")
    print_list(rows, shown, sort=sort, chosen=columns, as_json=as_json, texts={"scopes": " ".join})


@app.command()
def revoke(number: Annotated[int, typer.Argument(help="Number of the token, from `clew token list`.")]) -> None:
    """Make a token invalid at once, with the browser sessions that were opened with it.

    \b
    Example:
      clew token revoke 3
    """
    with _connect() as connection:
        connection.call("DELETE", f"/tokens/{number}")
    console.print(f"token {number} is revoked")


def _state(token: dict[str, Any]) -> str:
    if token["revoked"] is not None:
        return "revoked"
    if token["expires"] is None:
        return "never expires"
    left = token["expires"] - time.time()
    return "expired" if left < 0 else f"expires in {left / 86400:.0f} days"


def _connect() -> Connection:
    from clew.client.connection import Connection
    from clew.client.credentials import credentials

    login = credentials()
    if login is None:
        raise ConfigError("no server: log in with `clew login`, or set CLEW_SERVER and CLEW_TOKEN")
    return Connection(login.server, login.token, retry_seconds=0.0)


def _on_database(config: Any, name: str, scopes: list[str], seconds: float | None, user: str | None) -> str:
    import getpass

    pattern = str(import_server_name("clew.server.accounts.users", "USER_NAME"))
    if user is not None and not re.fullmatch(pattern, user):
        raise ConfigError(f"--user {user}: a name has letters, digits and . _ @ + - only, at most 64")
    opened = import_server_name("clew.server.service", "Service")
    if not Path(config.folder).is_dir() and config.database is None:
        typer.secho(f"creating {config.folder}", dim=True, err=True)  # standard output has the token only
    service = opened.open(config)
    try:
        return str(service.local_token(user or getpass.getuser(), name=name, scopes=scopes, seconds=seconds))
    finally:
        service.close()
