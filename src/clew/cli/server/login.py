"""`clew login` and `clew logout`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from clew.cli.options import bold, console
from clew.errors import ConfigError


def login(
    server: Annotated[str, typer.Argument(help="Address of the server.")] = "http://127.0.0.1:8470",
    token: Annotated[
        str | None,
        typer.Option(help="The token. A prompt is safer: the token does not get into the shell's history."),
    ] = None,
) -> None:
    """Save a server and your token for it. From then on your trainings are recorded there too.

    \b
    Examples:
      clew login http://127.0.0.1:8470
      clew login https://clew.example.org
      clew login https://clew.example.org < token

    The token is stored in a file that only you can read. CLEW_SERVER and CLEW_TOKEN override it.
    """
    from clew.client.connection import Connection
    from clew.client.credentials import Credentials, log_in

    secret = (token or _read_token()).strip()
    connection = Connection(server, secret, retry_seconds=0.0, any_address=True)
    try:
        me = connection.call("GET", "/me")
    finally:
        connection.close()
    listens_at = connection.check.forwarded_from
    if listens_at is not None:
        console.print(f"the server listens at {listens_at}: log in again if this forwarded port leads elsewhere later")
    path = log_in(Credentials(connection.server, secret, listens_at))
    console.print(f"logged in at {bold(connection.server)} as {bold(me['name'])} [dim]({path})[/]")


def _read_token() -> str:
    """Read the token from a prompt without echo, or from a pipe."""
    if sys.stdin.isatty():
        return str(typer.prompt("Token", hide_input=True))
    token = sys.stdin.readline().strip()
    if not token:
        raise ConfigError("no token; type it, or use: clew login ADDRESS < FILE")
    return token


def logout() -> None:
    """Remove the server and the token from this machine. `clew token revoke` makes a token invalid.

    \b
    Example:
      clew logout
    """
    from clew.client.credentials import log_out

    console.print("logged out" if log_out() else "you were not logged in")
