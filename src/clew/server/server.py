"""Starts the HTTP server and serves until a signal stops it."""

from __future__ import annotations

import errno
import gc
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import sqlalchemy as sa
import uvicorn

from clew.client.job import ACTIVE_STATES
from clew.errors import ConfigError
from clew.server.app import create_app
from clew.server.config import ServiceConfig
from clew.server.database.tables import jobs
from clew.server.http_protocol import HttpProtocol
from clew.server.jobs.local_agent import start_local_agent
from clew.server.monitoring.log_format import logging_config
from clew.server.service import Service

_SWITCH_INTERVAL = 0.0005
"""Seconds after which a thread must release Python's lock, so that the writer does not wait behind requests."""
_SHUTDOWN_SECONDS = 10
"""Seconds that open requests have to finish when the server stops."""


class Server(uvicorn.Server):
    """Ends event streams and long polls at a signal; they would never end by themselves."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service
        self.open_jobs: dict[str, int] = {}
        """Number of jobs that run and that wait when the server stops."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Count the jobs, then answer open requests and close everything."""
        self.open_jobs = count_open_jobs(self._service)
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle SIGTERM and SIGINT."""
        self._service.notifications.stop()
        super().handle_exit(sig, frame)
        self._captured_signals.clear()  # otherwise they are raised again after a clean end


def serve(
    config: ServiceConfig,
    *,
    user: str,
    ready: Callable[[Service, str, str | None], None],
    log: str,
    agent: bool = False,
) -> dict[str, int]:
    """Serve until SIGTERM or SIGINT. Open requests are answered, and waiting work is written.

    Args:
        config: Settings of the server.
        user: Name of the administrator that the first start makes.
        ready: Called once connections are accepted, with the service, its address and, on the first start, the token of
            the administrator.
        log: Level of the log.
        agent: Also start an agent.

    Returns:
        The number of jobs that run (`running`) and that wait (`waiting`) when the server stops.

    Raises:
        ConfigError: the address is in use or belongs to another machine; or other machines could reach the server, and
            there is no token yet.
    """
    sys.setswitchinterval(_SWITCH_INTERVAL)
    service = Service.open(config)
    with _listening(config, service) as (bound, address):
        token = service.first_token(user)
        ready(service, address, token)
        settings = uvicorn.Config(
            create_app(service),
            http=HttpProtocol,
            log_config=logging_config(log),
            access_log=False,
            timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
            server_header=False,
            proxy_headers=bool(config.trusted_proxies),
            forwarded_allow_ips=list(config.trusted_proxies),
        )
        gc.collect()
        gc.freeze()  # loaded modules stay: searching them for garbage would delay requests
        if agent:
            start_local_agent(service, address, user)
        server = Server(settings, service)
        server.run(sockets=[bound])
        return server.open_jobs


def count_open_jobs(service: Service) -> dict[str, int]:
    """Return the number of jobs that run and that wait, by `running` and `waiting`."""
    states = {"running": ACTIVE_STATES, "waiting": ("waiting",)}
    with service.database.read() as connection:
        query = sa.select(sa.func.count()).select_from(jobs)
        return {name: connection.scalar(query.where(jobs.c.state.in_(each))) or 0 for name, each in states.items()}


@contextmanager
def _listening(config: ServiceConfig, service: Service) -> Iterator[tuple[socket.socket, str]]:
    if not config.local and not service.has_tokens():
        service.close()
        raise ConfigError(
            f"--host {config.host}: other machines could reach it, and there is no token yet; start it once without "
            "--host, or make a token with `clew token create --folder FOLDER` (or --database URL)"
        )
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((config.host, config.port))
        bound.listen(1024)
    except OSError as error:
        service.close()
        bound.close()
        hint = "choose another --port" if error.errno in (errno.EADDRINUSE, errno.EACCES) else "choose another --host"
        raise ConfigError(f"{config.host}:{config.port}: cannot listen there ({error.strerror}); {hint}") from None
    host = f"[{config.host}]" if family == socket.AF_INET6 else config.host
    with bound:
        yield bound, f"http://{host}:{bound.getsockname()[1]}"
