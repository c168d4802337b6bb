"""Hosts are real network namespaces. Tests are skipped where they cannot be created."""

from __future__ import annotations

import pytest

from clew.bench.strategies.hosts import hosts_unavailable_reason


@pytest.fixture(scope="session")
def can_host() -> None:
    """Skip the test if this machine cannot create hosts."""
    if reason := hosts_unavailable_reason():
        pytest.skip(reason)
