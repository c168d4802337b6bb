"""Hosts are real namespaces, or the test does not run."""

from __future__ import annotations

import pytest

from clew.bench.hosts import why_not


@pytest.fixture(scope="session")
def can_host() -> None:
    """Skip where this machine cannot have hosts in it."""
    if told := why_not():
        pytest.skip(told)
