"""Hosts are real namespaces, or the test does not run."""

from __future__ import annotations

import pytest

from clew.bench.strategies.hosts import hosts_unavailable_reason


@pytest.fixture(scope="session")
def can_host() -> None:
    """Skip where this machine cannot have hosts in it."""
    if reason := hosts_unavailable_reason():
        pytest.skip(reason)
