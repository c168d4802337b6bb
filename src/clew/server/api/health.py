"""Health check, the proof that a client asks for, and metrics for Prometheus."""

from __future__ import annotations

from typing import Annotated

import sqlalchemy as sa
from fastapi import APIRouter, Query, Request
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel

from clew.client.server_proof import NAME_DIGITS, PATH, address_text
from clew.server.api.dependencies import PROBLEMS, Reader, ServiceOf, address_of

router = APIRouter(tags=["health"], responses=PROBLEMS)


class Health(BaseModel):
    """The answer of `/healthz`."""

    status: str


class Identity(BaseModel):
    """What shows a client that its token belongs to this server."""

    address: str
    proof: str


@router.get("/healthz")
def healthz(service: ServiceOf) -> Health:
    """Check that the database answers. No token is needed, and nothing else is returned."""
    with service.database.read() as connection:
        connection.execute(sa.select(1))
    return Health(status="ok")


@router.get(PATH)
def identity(
    request: Request,
    service: ServiceOf,
    token: Annotated[str, Query(pattern=f"^[0-9a-f]{{{NAME_DIGITS}}}$", description="Start of the token's SHA-256.")],
    nonce: Annotated[str, Query(pattern="^[0-9a-f]{64}$", description="A random number.")],
) -> Identity:
    """Prove that a token belongs to this server, so that a client can send it. Needs no token."""
    address = address_text(*(request.scope.get("server") or ("", None)))
    answer = service.tokens.proof(token, nonce, address)
    if answer is None:
        raise service.rate_limit.rejection(address_of(request), has_token=True)
    return Identity(address=address, proof=answer)


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
