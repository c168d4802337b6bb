"""Settings of a server."""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from clew.core.config import Section
from clew.server.alerts.config import AlertSettings

DEFAULT_PORT = 8470
ARTEFACT_KINDS = ("checkpoint", "model", "plot", "report", "log", "file")
"""Kinds of artefacts."""


def default_folder() -> Path:
    """Return the folder `clew/service` in the user's data folder."""
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "clew" / "service"


def _is_network(text: str) -> str:
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise ValueError("an address or a network, such as 127.0.0.1 or 172.16.0.0/12; no names of hosts") from None
    return text


class ServerLimits(Section):
    """Limits per request, address or user."""

    body_bytes: int = Field(8_000_000, ge=1000)
    """Size of a request; uploads of artefacts have their own limit."""
    upload_bytes: int = Field(50_000_000_000, ge=1000)
    """Size of one artefact."""
    bad_tokens: int = Field(20, ge=1)
    """Invalid tokens per minute and address; more are refused with 429."""
    waiting: int = Field(10_000, ge=10)
    """Changes that may wait to be written; more are refused with 503."""
    streams: int = Field(500, ge=1)
    """Event streams that may be open at once."""
    streams_per_user: int = Field(100, ge=1)
    """Event streams that one user may have open at once, so that the others are not kept out."""
    agent_seconds: float = Field(60.0, ge=5)
    """Seconds without contact after which an agent counts as gone, and its jobs as lost."""
    quota_jobs: int = Field(100, ge=0)
    """Running jobs per user, for users without a quota of their own."""
    quota_bytes: int = Field(200_000_000_000, ge=0)
    """Bytes of artefacts and logs per user, for users without a quota of their own."""


class RetentionRule(Section):
    """A rule that deletes old artefacts of one kind."""

    kind: Literal["checkpoint", "model", "plot", "report", "log", "file"]
    days: float = Field(ge=0)
    """Age in days at which they are deleted."""
    keep_tagged: bool = True
    """Keep the artefacts of runs that have a tag."""


class ServiceConfig(Section):
    """Settings of one server."""

    folder: Path = Field(default_factory=default_folder)
    """Folder of the database, the artefacts and the logs of jobs."""
    database: str | None = None
    """`postgresql://USER@HOST/NAME`; default: SQLite in the folder."""
    store: str | None = None
    """Location of artefacts, such as `s3://BUCKET/clew` or any that `clew.storage` supports; default: the folder."""
    host: str = "127.0.0.1"
    """Address to listen on. The default can be reached from this machine only."""
    port: int = Field(DEFAULT_PORT, ge=0, le=65535)
    """0: any free port."""
    limits: ServerLimits = ServerLimits()
    retention: tuple[RetentionRule, ...] = ()
    """Rules that delete old artefacts; default: none is deleted."""
    alerts: AlertSettings = AlertSettings()
    secure: bool = False
    """The server is behind TLS: browsers send the session cookie over HTTPS only."""
    trusted_proxies: tuple[Annotated[str, AfterValidator(_is_network)], ...] = ()
    """Addresses or networks of proxies, such as `127.0.0.1`. The address of a request is then the one that the proxy
    wrote to `X-Forwarded-For`. Any other sender of this header is not believed."""

    @property
    def url(self) -> str:
        """The URL of the database."""
        return self.database or f"sqlite:///{self.folder / 'clew.sqlite'}"

    @property
    def local(self) -> bool:
        """Whether only this machine can reach the server."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"
