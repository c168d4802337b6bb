"""Artefacts of runs: checkpoints, models, plots, reports, logs."""

from __future__ import annotations

import mimetypes
import time
from functools import partial
from typing import Annotated, Any, Literal
from urllib.parse import quote

import sqlalchemy as sa
from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import FileResponse
from starlette.concurrency import run_in_threadpool

from clew.client.artefacts import ArtefactInfo
from clew.server.accounts.callers import Caller, record
from clew.server.api.dependencies import (
    PROBLEMS,
    After,
    Author,
    Limit,
    Number,
    Page,
    Pusher,
    Reader,
    ServiceOf,
    Watcher,
    one,
    page,
)
from clew.server.database.tables import artefacts, blobs, runs
from clew.server.database.writer import Change
from clew.server.problems import RefusedError, missing
from clew.server.storage.artefact_store import Blob
from clew.server.storage.quota import full, left
from clew.server.storage.range_response import ranged

router = APIRouter(prefix="/api/v1", tags=["artefacts"], responses=PROBLEMS)
Kind = Literal["checkpoint", "model", "plot", "report", "log", "file"]
_PART = r"[A-Za-z0-9_@+=,()\[\]-][A-Za-z0-9_.@+=,()\[\] -]*"
File = Annotated[str, Path(max_length=300, pattern=rf"^{_PART}(/{_PART})*$", description="As plots/test/roc.json")]
_SHOWN = ("text/html", "image/png", "image/svg+xml", "application/json", "text/plain", "application/pdf")
_SANDBOX = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; "
    "img-src data: blob:; font-src data:; frame-ancestors 'self'"
)
"""A report may draw its plots; it cannot reach the server, its cookie or anything else."""


class Artefact(ArtefactInfo):
    """Something that a run made, and whose it is."""

    owner: int
    group: int | None
    job: int | None


@router.get("/artefacts")
def list_all(
    service: ServiceOf, caller: Reader, limit: Limit = 100, after: After = None, kind: Kind | None = None
) -> Page[Artefact]:
    """All that I see, newest first."""
    query = sa.select(artefacts).where(caller.seen(artefacts))
    if kind is not None:
        query = query.where(artefacts.c.kind == kind)
    with service.database.read() as connection:
        return page(connection, query, artefacts.c.id, _shown, limit=limit, after=after)


@router.get("/runs/{number}/artefacts")
def list_artefacts(
    service: ServiceOf, caller: Watcher, number: Number, limit: Limit = 1000, after: After = None
) -> Page[Artefact]:
    """Those of a run, newest first."""
    with service.database.read() as connection:
        one(connection, runs, number, caller, "run")
        query = sa.select(artefacts).where(artefacts.c.run == number)
        return page(connection, query, artefacts.c.id, _shown, limit=limit, after=after)


@router.put(
    "/runs/{number}/artefacts/{name:path}",
    status_code=201,
    openapi_extra={"requestBody": {"content": {"application/octet-stream": {"schema": {"type": "string"}}}}},
)
async def upload(
    service: ServiceOf,
    caller: Pusher,
    number: Number,
    name: File,
    request: Request,
    response: Response,
    kind: Kind = "file",
    sha256: Annotated[str | None, Query(pattern=r"^[0-9a-f]{64}$", description="What the content must have.")] = None,
) -> Artefact:
    """The body becomes the artefact of that name, in place of one there was (200). It counts towards the quota of the
    run's owner.
    """
    owner, room = await run_in_threadpool(_room, service, caller, number)
    with service.incoming.counted(owner, request.stream(), room=room) as parts:
        blob = await service.store.put(parts, most=service.config.limits.upload_bytes, expected=sha256)
        made, row = await service.write_soon(lambda change: _keep(service, change, caller, number, name, kind, blob))
    response.status_code = 201 if made else 200
    return _shown(row)


@router.get("/runs/{number}/artefacts/{name:path}", response_class=FileResponse)
def download(
    service: ServiceOf, caller: Watcher, number: Number, name: File, request: Request, save: bool = False
) -> Response:
    """The content, whole or by `Range`. Pages and pictures are shown in a sandbox, unless `save` asks for a file."""
    with service.database.read() as connection:
        one(connection, runs, number, caller, "run")
        query = sa.select(artefacts).where(artefacts.c.run == number, artefacts.c.name == name)
        row = connection.execute(query).one_or_none()
    if row is None:
        raise missing("artefact", name)
    shown = row.type in _SHOWN and not save
    headers = {"Content-Security-Policy": _SANDBOX, "ETag": f'"{row.blob}"', "Cache-Control": "private, no-cache"}
    path, way = service.store.path(row.blob), "inline" if shown else "attachment"
    if path is None:
        headers["Content-Disposition"] = f"{way}; filename*=utf-8''{quote(name.rpartition('/')[2])}"
        return ranged(request.headers, partial(service.store.read, row.blob), row.bytes, row.type, headers)
    filename = name.rpartition("/")[2]
    return FileResponse(path, media_type=row.type, filename=filename, content_disposition_type=way, headers=headers)


@router.delete("/runs/{number}/artefacts/{name:path}", status_code=204)
async def remove(service: ServiceOf, caller: Author, number: Number, name: File) -> None:
    """Take an artefact away; its content goes when nothing else has it."""

    def work(change: Change) -> None:
        one(change.connection, runs, number, caller, "run")
        gone = change.execute(artefacts.delete().where(artefacts.c.run == number, artefacts.c.name == name))
        if not gone.rowcount:
            raise missing("artefact", name)
        record(change, caller, "delete artefact", f"run:{number}", name=name)
        change.tell(f"run:{number}")

    await service.write_soon(work)


def _room(service: ServiceOf, caller: Caller, number: int) -> tuple[int, int]:
    """The run's owner, and how many bytes that person has left."""
    with service.database.read() as connection:
        owner = one(connection, runs, number, caller, "run").owner
        room = left(connection, owner, service.config.limits)
    if room <= 0:
        raise full()
    return owner, room


def _keep(
    service: ServiceOf, change: Change, caller: Caller, number: int, name: str, kind: str, blob: Blob
) -> tuple[bool, Any]:
    run = one(change.connection, runs, number, caller, "run")
    if not service.store.fresh(blob.sha256):
        raise RefusedError(409, "the content was cleared away meanwhile", do="send it again")
    same = artefacts.c.run == number, artefacts.c.name == name
    before = change.scalar(sa.select(artefacts.c.bytes).where(*same))
    if blob.bytes - (before or 0) > left(change.connection, run.owner, service.config.limits):
        raise full()
    if change.scalar(sa.select(blobs.c.sha256).where(blobs.c.sha256 == blob.sha256)) is None:
        change.execute(blobs.insert().values(sha256=blob.sha256, bytes=blob.bytes, created=time.time()))
    change.execute(artefacts.delete().where(*same))
    facts: dict[str, Any] = {"owner": run.owner, "group": run.group, "run": number, "job": run.job, "name": name}
    facts |= {"kind": kind, "type": _media(name), "blob": blob.sha256, "bytes": blob.bytes, "created": time.time()}
    key = change.add(artefacts, **facts)
    record(change, caller, "upload", f"run:{number}", name=name, bytes=blob.bytes)
    change.tell(f"run:{number}")
    return before is None, change.execute(sa.select(artefacts).where(artefacts.c.id == key)).mappings().one()


def _media(name: str) -> str:
    known = {".jsonl": "text/plain", ".yaml": "text/plain", ".log": "text/plain", ".md": "text/plain"}
    ending = f".{name.rpartition('.')[2]}".lower()
    return known.get(ending) or mimetypes.guess_type(name)[0] or "application/octet-stream"


def _shown(row: Any) -> Artefact:
    return Artefact(**{name: row[name] for name in Artefact.model_fields if name != "sha256"}, sha256=row["blob"])
