"""The routes, one file a subject. All but `/healthz` and `/metrics` stand under `/api/v1`."""

from __future__ import annotations

from fastapi import APIRouter

from clew.service.api import admin, agents, health, jobs, people, runs

ROUTERS: tuple[APIRouter, ...] = (health.router, people.router, admin.router, runs.router, jobs.router, agents.router)
