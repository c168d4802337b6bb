"""`clew.Client`: a clew server from Python. Commands such as `clew submit`, `jobs`, `logs` and `stop` use it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from clew.client.agent_messages import AgentInfo
from clew.client.artefacts import Artefacts
from clew.client.connection import Connection
from clew.client.credentials import credentials as saved_credentials
from clew.client.datasets import Datasets
from clew.client.job import Kind
from clew.client.job_handle import JobHandle
from clew.client.jobs import Jobs
from clew.client.runs import Runs
from clew.client.studies import Studies
from clew.errors import ConfigError

if TYPE_CHECKING:
    from clew.client.submission import JobOptions
    from clew.recipe import Recipe


class Client:
    """A connection to a clew server.

    The attributes `jobs`, `studies`, `runs`, `artefacts` and `datasets` hold the requests by subject. Lists are
    iterators that request further pages when needed. Use a client as a context manager, or call `close`.

    Args:
        server: Address of the server, such as `http://127.0.0.1:8470`. Default: CLEW_SERVER, or that of `clew login`.
        token: A token of this server. Default: CLEW_TOKEN, or that of `clew login`.
        retry_seconds: Seconds for which a request is repeated while the server is away or too busy.

    Raises:
        ConfigError: no server or no token is known, or the address is not valid.

    Example:
        >>> with clew.Client() as client:  # doctest: +SKIP
        ...     job = client.submit("my_recipe.py", dataset="rucio:user.me:samples", store="s3://bucket/models")
        ...     print(job.wait().stored)
    """

    def __init__(self, server: str | None = None, token: str | None = None, *, retry_seconds: float = 30.0) -> None:
        address, secret = credentials(server, token)
        self.connection = Connection(address, secret, retry_seconds=retry_seconds)
        self.server = self.connection.server
        self.jobs = Jobs(self.connection)
        self.runs = Runs(self.connection)
        self.artefacts = Artefacts(self.connection)
        self.datasets = Datasets(self.connection)
        self.studies = Studies(self.connection)

    def submit(
        self,
        target: str | Path | type[Recipe],
        settings: Sequence[str] | Mapping[str, Any] = (),
        *,
        kind: Kind = "train",
        **options: Unpack[JobOptions],
    ) -> JobHandle:
        """Submit a job: a training with a recipe of clew or your own, a script, a study, a preparation, ...

        The file of an own recipe or script travels with the job, with the modules of its folder that it imports.

        Args:
            target: A recipe's name, file or class, a YAML file or a run's folder. For `script`: a Python or shell
                file. For `evaluate`: the number of a job. For `bench`: the arguments of `clew bench` as one text.
            settings: Changes of settings: `["train.epochs=10"]` or `{"train.epochs": 10}`.
            kind: `train`, `tune`, `prepare`, `evaluate`, `bench` or `script`.
            **options: name, dataset, resources (`{"gpus": 1, "memory": "16G", "wall_time": "2h"}`), store, priority,
                group, requeue, the arguments of a script, and trials_as_jobs (for `tune`: every trial is a job).

        Returns:
            The job: follow it, wait for it, read its error.

        Raises:
            ConfigError: The settings do not fit; the message has the file and the line.
            RecipeError: There is no such recipe, or it cannot travel.
            ServerError: The server does not answer, or refuses the job.

        Example:
            >>> job = client.submit("train.py", kind="script", arguments=["--lr", "0.1"])  # doctest: +SKIP
            >>> print(job.error)  # doctest: +SKIP
            train.py:12: ValueError: no beam
        """
        from clew.client.submission import submission  # imported late: it loads the settings of all packages

        return JobHandle(self, self.jobs.submit(submission(target, settings, kind=kind, **options)).id)

    def me(self) -> dict[str, Any]:
        """Return the user that the token belongs to, its scopes and groups.

        Raises:
            ServerError: the server does not answer, or the token is not valid.
        """
        return dict(self.connection.call("GET", "/me"))

    def agents(self) -> list[AgentInfo]:
        """Return the agents that this user may see."""
        return [AgentInfo.model_validate(item) for item in self.connection.pages("/agents")]

    def close(self) -> None:
        """Close the connections."""
        self.connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def credentials(server: str | None = None, token: str | None = None) -> tuple[str, str]:
    """Return the address and the token to use: the arguments, else the environment, else those of `clew login`.

    Args:
        server: Address of a server.
        token: A token.

    Returns:
        The address, without a slash at its end, and the token.

    Raises:
        ConfigError: no server or no token is known.
    """
    saved = None if server and token else saved_credentials()
    address = (server or (saved.server if saved else "")).rstrip("/")
    secret = token or os.environ.get("CLEW_TOKEN")
    if not secret and saved is not None and saved.server == address:  # a token belongs to one server
        secret = saved.token
    if not address or not secret:
        raise ConfigError("no server is known: log in with `clew login`, or set CLEW_SERVER and CLEW_TOKEN")
    return address, secret
