"""Settings of a server."""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from typing import Literal

from pydantic import Field

from clew.core.config import Section

PORT = 8470
KINDS = ("checkpoint", "model", "plot", "report", "log", "file")
"""What an artefact may be."""


def default_folder() -> Path:
    """`clew/service` in the user's data folder."""
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "clew" / "service"


class Limits(Section):
    """What one request, one address or one person may take."""

    body_bytes: int = Field(8_000_000, ge=1000)
    """Of a request, uploads of artefacts aside."""
    upload_bytes: int = Field(50_000_000_000, ge=1000)
    """Of one artefact."""
    bad_tokens: int = Field(20, ge=1)
    """A minute and address; then it is told to wait."""
    waiting: int = Field(10_000, ge=10)
    """Changes that wait to be written; more are refused with 503."""
    streams: int = Field(500, ge=1)
    """Event streams open at a time."""
    quota_jobs: int = Field(100, ge=0)
    """Jobs a person may have running, unless the person's own quota says otherwise."""
    quota_bytes: int = Field(200_000_000_000, ge=0)
    """Of artefacts, likewise."""


class Retention(Section):
    """Artefacts of a kind go when they are older than so many days; those of tagged runs may stay."""

    kind: Literal["checkpoint", "model", "plot", "report", "log", "file"]
    days: float = Field(ge=0)
    keep_tagged: bool = True
    """Not those of runs that have a tag."""


class ServiceConfig(Section):
    """One server."""

    folder: Path = Field(default_factory=default_folder)
    """Database, artefacts, logs of jobs."""
    database: str | None = None
    """Default: SQLite in the folder. Or `postgresql://USER@HOST/NAME`."""
    store: str | None = None
    """Of artefacts. Default: in the folder. Or any place that `clew.storage` knows: `s3://BUCKET/clew`, `file:///data`."""
    host: str = "127.0.0.1"
    port: int = Field(PORT, ge=0, le=65535)
    """0: any that is free."""
    limits: Limits = Limits()
    retention: tuple[Retention, ...] = ()
    secure: bool = False
    """Behind TLS: browsers send the session's cookie over HTTPS only, and are told to keep to it."""

    @property
    def url(self) -> str:
        """Of the database."""
        return self.database or f"sqlite:///{self.folder / 'clew.sqlite'}"

    @property
    def local(self) -> bool:
        """Whether only this machine can reach it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"
