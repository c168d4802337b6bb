"""The routes, one file a subject. All but `/healthz` and `/metrics` stand under `/api/v1`."""

from __future__ import annotations

import importlib

from fastapi import APIRouter

SUBJECTS = (
    "health",
    "people",
    "admin",
    "overview",
    "runs",
    "records",
    "metrics",
    "events",
    "artefacts",
    "catalogue",
    "jobs",
    "agents",
    "studies",
)


def routers() -> list[APIRouter]:
    """Every subject's."""
    return [importlib.import_module(f"clew.service.api.{name}").router for name in SUBJECTS]
