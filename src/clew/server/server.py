"""Serving until told to stop."""

from __future__ import annotations

import gc
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from clew.errors import ConfigError
from clew.server.app import create_app
from clew.server.config import ServiceConfig
from clew.server.jobs.local_agent import beside
from clew.server.middleware import WHOLE
from clew.server.monitoring.log_format import configuration
from clew.server.service import Service

_SWITCH = 0.0005
"""Seconds for which a thread may keep Python's lock from the others: the writer must not wait behind requests."""
_GRACE = 10
"""Seconds that requests have to end once the server is told to stop."""


class Stamped(HttpToolsProtocol):
    """Writes down when the last byte of a request was read: from then on it is the server that takes time."""

    def on_message_complete(self) -> None:
        """All of a request is here."""
        self.scope[WHOLE] = time.perf_counter()  # type: ignore[literal-required]
        super().on_message_complete()


class Server(uvicorn.Server):
    """Ends event streams and long polls when it is told to stop: they would go on for ever."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal came."""
        self._service.hub.stop()
        super().handle_exit(sig, frame)
        self._captured_signals.clear()  # they would be raised again after the end, which is a good one


def serve(
    config: ServiceConfig,
    *,
    user: str,
    ready: Callable[[Service, str, str | None], None],
    log: str,
    agent: bool = False,
) -> None:
    """Serve until SIGTERM or SIGINT; requests under way are answered, what waits is written.

    `ready` is told the service, its address and, on the first start, the token of the administrator called `user`, once
    connections are taken. `agent`: start one beside it.

    Raises:
        ConfigError: the address is taken or not this machine's; nobody has a token, and others could reach it.
    """
    sys.setswitchinterval(_SWITCH)
    service = Service.open(config)
    with _listening(config, service) as (bound, address):
        token = service.first_token(user)
        ready(service, address, token)
        settings = uvicorn.Config(
            create_app(service),
            http=Stamped,
            log_config=configuration(log),
            access_log=False,
            timeout_graceful_shutdown=_GRACE,
            server_header=False,
            proxy_headers=False,
        )
        gc.collect()
        gc.freeze()  # what was loaded stays: looking through it for garbage would hold every request up
        if agent:
            beside(service, address, user)
        Server(settings, service).run(sockets=[bound])


@contextmanager
def _listening(config: ServiceConfig, service: Service) -> Iterator[tuple[socket.socket, str]]:
    if not config.local and not service.guarded():
        service.close()
        raise ConfigError(
            f"--host {config.host}: others could reach it, and nobody has a token yet; start it once without --host, "
            "or make a token with `clew token create --folder FOLDER`"
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
        raise ConfigError(
            f"{config.host}:{config.port}: cannot listen there ({error.strerror}); choose another --port"
        ) from None
    host = f"[{config.host}]" if family == socket.AF_INET6 else config.host
    with bound:
        yield bound, f"http://{host}:{bound.getsockname()[1]}"
