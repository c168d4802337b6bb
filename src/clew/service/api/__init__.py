"""The routes, one file a subject. All but `/healthz` and `/metrics` stand under `/api/v1`."""

from __future__ import annotations

from fastapi import APIRouter

from clew.service.api import admin, events, health, metrics, overview, people, records, runs

ROUTERS: tuple[APIRouter, ...] = tuple(
    module.router for module in (health, people, admin, overview, runs, records, metrics, events)
)
