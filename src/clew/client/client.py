"""`clew.Client`: a server from Python. `clew submit`, `jobs`, `logs`, `stop` and others are thin over it."""

from __future__ import annotations

import os
from typing import Any

from clew.client.agent_messages import Agent
from clew.client.artefacts import Artefacts
from clew.client.connection import Link
from clew.client.credentials import credentials as logged_in
from clew.client.datasets import Datasets
from clew.client.jobs import Jobs
from clew.client.runs import Runs
from clew.client.studies import Studies
from clew.errors import ConfigError


class Client:
    """A server, and what one has there: `jobs`, `studies`, `runs`, `artefacts`, `datasets`, `agents`.

    Lists are iterators that ask for more as they go. A server that is away is tried again for `patience` seconds.
    Use it as a context, or close it.
    """

    def __init__(self, server: str | None = None, token: str | None = None, *, patience: float = 30.0) -> None:
        """Without `server` and `token`: those of CLEW_SERVER and CLEW_TOKEN, or of `clew login`.

        Raises:
            ConfigError: there are none.
        """
        address, secret = credentials(server, token)
        self._link = Link(address, secret, patience=patience)
        self.server = self._link.server
        self.jobs = Jobs(self._link)
        self.runs = Runs(self._link)
        self.artefacts = Artefacts(self._link)
        self.datasets = Datasets(self._link)
        self.studies = Studies(self._link)

    def me(self) -> dict[str, Any]:
        """Who the token belongs to, and what it may."""
        return dict(self._link.call("GET", "/me"))

    def agents(self) -> list[Agent]:
        """The agents there are for me."""
        return [Agent.model_validate(each) for each in self._link.pages("/agents")]

    def close(self) -> None:
        """Give its connections back."""
        self._link.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def credentials(server: str | None = None, token: str | None = None) -> tuple[str, str]:
    """An address and a token: as given, else of the environment, else of `clew login`.

    Raises:
        ConfigError: there are none.
    """
    known = None if server and token else logged_in()
    address = (server or (known.server if known else "")).rstrip("/")
    secret = token or os.environ.get("CLEW_TOKEN")
    if not secret and known is not None and known.server == address:  # one server's token is not for another
        secret = known.token
    if not address or not secret:
        raise ConfigError("no server is known: log in with `clew login`, or set CLEW_SERVER and CLEW_TOKEN")
    return address, secret
