"""Fixtures of all sites."""

from __future__ import annotations

from tests.sites.conftest_slurm import cluster, site

__all__ = ["cluster", "site"]
