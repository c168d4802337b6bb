"""`clew login` and `clew logout`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from clew.cli.options import bold, console
from clew.errors import ConfigError


def login(
    server: Annotated[str, typer.Argument(help="Its address.")] = "http://127.0.0.1:8470",
    token: Annotated[
        str | None, typer.Option(help="Better left out: it is asked for, and stays out of your shell's history.")
    ] = None,
) -> None:
    """Remember a server and your token for it: from then on what you train is recorded there too.

    \b
    Examples:
      clew login http://127.0.0.1:8470
      clew login https://clew.example.org
      clew login https://clew.example.org < token

    The token is kept in a file that only you can read. CLEW_SERVER and CLEW_TOKEN, where set, go before it.
    """
    from clew.client.connection import Connection
    from clew.client.credentials import Credentials, log_in

    secret = (token or _asked()).strip()
    link = Connection(server, secret, retry_seconds=0.0)
    try:
        me = link.call("GET", "/me")
    finally:
        link.close()
    path = log_in(Credentials(link.server, secret))
    console.print(f"logged in at {bold(link.server)} as {bold(me['name'])} [dim]({path})[/]")


def _asked() -> str:
    """The token, typed unseen or from a pipe."""
    if sys.stdin.isatty():
        return str(typer.prompt("Token", hide_input=True))
    told = sys.stdin.readline().strip()
    if not told:
        raise ConfigError("no token came in; type it, or send it: clew login ADDRESS < FILE")
    return told


def logout() -> None:
    """Forget the server and the token on this machine. `clew token revoke` ends a token for good.

    \b
    Example:
      clew logout
    """
    from clew.client.credentials import log_out

    console.print("logged out" if log_out() else "you were not logged in")
