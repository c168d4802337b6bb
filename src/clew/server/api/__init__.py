"""The routes, one file a subject. All but `/healthz` and `/metrics` stand under `/api/v1`."""

from __future__ import annotations

import importlib

from fastapi import APIRouter

SUBJECTS = (
    "records",
    "runs",
    "health",
    "accounts",
    "admin",
    "overview",
    "metrics",
    "events",
    "artefacts",
    "catalogue",
    "jobs",
    "agents",
    "studies",
)
"""In the order in which a path is looked for: what is asked most comes first."""


def routers() -> list[APIRouter]:
    """Every subject's."""
    return [importlib.import_module(f"clew.server.api.{name}").router for name in SUBJECTS]
