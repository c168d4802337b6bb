"""`clew login` and `clew logout`."""

from __future__ import annotations

from typing import Annotated

import typer

from clew.cli.options import bold, console


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

    The token is kept in a file that only you can read. CLEW_SERVER and CLEW_TOKEN, where set, go before it.
    """
    from clew.ledger.credentials import Credentials, log_in
    from clew.ledger.link import Link

    secret = token or typer.prompt("Token", hide_input=True)
    link = Link(server, secret.strip(), patience=0.0)
    try:
        me = link.call("GET", "/me")
    finally:
        link.close()
    path = log_in(Credentials(link.server, secret.strip()))
    console.print(f"logged in at {bold(link.server)} as {bold(me['name'])} [dim]({path})[/]")


def logout() -> None:
    """Forget the server and the token on this machine. `clew token revoke` ends a token for good.

    \b
    Example:
      clew logout
    """
    from clew.ledger.credentials import log_out

    console.print("logged out" if log_out() else "you were not logged in")
