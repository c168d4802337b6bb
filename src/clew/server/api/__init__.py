"""The REST routes, one file per subject. All but `/healthz` and `/metrics` are below `/api/v1`.

`dependencies.py` has what routes share: the caller, scopes, pages of lists and types of bodies.
"""

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
    "views",
)
"""In the order in which paths are compared: the most frequent requests come first."""


def routers() -> list[APIRouter]:
    """Return the router of each subject."""
    return [importlib.import_module(f"clew.server.api.{name}").router for name in SUBJECTS]
