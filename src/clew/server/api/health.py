"""Health check and metrics for Prometheus."""

from __future__ import annotations

import sqlalchemy as sa
from fastapi import APIRouter
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel

from clew.server.api.dependencies import PROBLEMS, Reader, ServiceOf

router = APIRouter(tags=["health"], responses=PROBLEMS)


class Health(BaseModel):
    """The answer of `/healthz`."""

    status: str


@router.get("/healthz")
def healthz(service: ServiceOf) -> Health:
    """Check that the database answers. No token is needed, and nothing else is returned."""
    with service.database.read() as connection:
        connection.execute(sa.select(1))
    return Health(status="ok")


@router.get("/metrics", response_class=PlainTextResponse)
async def prometheus(service: ServiceOf, caller: Reader) -> str:
    """Metrics for Prometheus; needs a token with the scope read."""
    writer = service.writer
    values = {
        "clew_writer_waiting": ("gauge", writer.queue_length),
        "clew_writer_commits_total": ("counter", writer.commits),
        "clew_writer_changes_total": ("counter", writer.tasks),
        "clew_writer_seconds_total": ("counter", round(writer.seconds, 6)),
        "clew_listeners": ("gauge", service.notifications.subscriptions),
        "clew_bad_tokens_total": ("counter", service.rate_limit.total),
    }
    lines = [line for name, (kind, value) in values.items() for line in (f"# TYPE {name} {kind}", f"{name} {value}")]
    return "\n".join([*lines, *service.request_metrics.prometheus_lines()]) + "\n"
