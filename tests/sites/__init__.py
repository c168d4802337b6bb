"""Tests against the real software of sites, on loopback; skipped with a reason if it is not installed."""

from __future__ import annotations

import os

import pytest

long = pytest.mark.skipif(
    not os.environ.get("CLEW_TEST_SITES"), reason="takes long: make test-sites, or CLEW_TEST_SITES=1"
)
