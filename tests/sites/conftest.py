"""Fixtures of all servers."""

from __future__ import annotations

from tests.sites.conftest_rucio import rucio, rucio_server
from tests.sites.conftest_s3 import s3, s3_server

__all__ = ["rucio", "rucio_server", "s3", "s3_server"]
