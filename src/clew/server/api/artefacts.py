"""Routes for artefacts of runs: checkpoints, models, plots, reports and logs."""

from __future__ import annotations

import mimetypes
import time
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal
from urllib.parse import quote

import sqlalchemy as sa
from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import FileResponse
from starlette.concurrency import run_in_threadpool

from clew.client.artefacts import ArtefactInfo
from clew.server.accounts.audit import record_action
from clew.server.accounts.caller import Caller
from clew.server.api.dependencies import (
    PROBLEMS,
    After,
    Author,
    Limit,
    Number,
    Reader,
    ResultPage,
    RunReader,
    RunWriter,
    ServiceOf,
    paginate,
    visible_row,
)
from clew.server.database.tables import artefacts, blobs, runs
from clew.server.database.writer import Transaction
from clew.server.problems import RequestError, not_found
from clew.server.storage.artefact_store import StoredContent
from clew.server.storage.quota import quota_exceeded, remaining_bytes
from clew.server.storage.range_response import RemoteContent, range_response

router = APIRouter(prefix="/api/v1", tags=["artefacts"], responses=PROBLEMS)
Kind = Literal["checkpoint", "model", "plot", "report", "log", "file"]
_PART = r"[A-Za-z0-9_@+=,()\[\]-][A-Za-z0-9_.@+=,()\[\] -]*"
File = Annotated[str, Path(max_length=300, pattern=rf"^{_PART}(/{_PART})*$", description="Such as plots/test/roc.json")]
_INLINE_TYPES = ("text/html", "image/png", "image/svg+xml", "application/json", "text/plain", "application/pdf")
_SANDBOX = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; "
    "img-src data: blob:; font-src data:; frame-ancestors 'self'"
)
"""A report may draw its plots. It cannot reach the server, the cookie or anything else."""


class Artefact(ArtefactInfo):
    """A file of a run, with its owner."""

    owner: int
    group: int | None
    job: int | None


@router.get("/artefacts")
def list_all(
    service: ServiceOf, caller: Reader, limit: Limit = 100, after: After = None, kind: Kind | None = None
) -> ResultPage[Artefact]:
    """List all artefacts that the caller may see, the newest first."""
    query = sa.select(artefacts).where(caller.visible(artefacts))
    if kind is not None:
        query = query.where(artefacts.c.kind == kind)
    with service.database.read() as connection:
        return paginate(connection, query, artefacts.c.id, _artefact, limit=limit, after=after)


@router.get("/runs/{number}/artefacts")
def list_artefacts(
    service: ServiceOf, caller: RunReader, number: Number, limit: Limit = 1000, after: After = None
) -> ResultPage[Artefact]:
    """List the artefacts of a run, the newest first."""
    with service.database.read() as connection:
        visible_row(connection, runs, number, caller, "run")
        query = sa.select(artefacts).where(artefacts.c.run == number)
        return paginate(connection, query, artefacts.c.id, _artefact, limit=limit, after=after)


@router.put(
    "/runs/{number}/artefacts/{name:path}",
    status_code=201,
    openapi_extra={"requestBody": {"content": {"application/octet-stream": {"schema": {"type": "string"}}}}},
)
async def upload(
    service: ServiceOf,
    caller: RunWriter,
    number: Number,
    name: File,
    request: Request,
    response: Response,
    kind: Kind = "file",
    sha256: Annotated[
        str | None, Query(pattern=r"^[0-9a-f]{64}$", description="The SHA-256 that the content must have.")
    ] = None,
) -> Artefact:
    """Store the body as an artefact. An artefact of the same name is replaced (status 200).

    It counts towards the quota of the run's owner.
    """
    owner, limit = await run_in_threadpool(_remaining_quota, service, caller, number)
    with service.uploads.limited(owner, request.stream(), limit=limit) as parts:
        content = await service.store.put(parts, limit=service.config.limits.upload_bytes, expected=sha256)
        new = NewArtefact(number, name, kind, content)
        made, row = await service.write_async(lambda transaction: _save_artefact(service, transaction, caller, new))
    response.status_code = 201 if made else 200
    return _artefact(row)


@router.get("/runs/{number}/artefacts/{name:path}", response_class=FileResponse)
def download(
    service: ServiceOf, caller: RunReader, number: Number, name: File, request: Request, save: bool = False
) -> Response:
    """Return the content, or the part that a `Range` header names.

    Pages and pictures are shown in a sandbox, unless `save` requests a file.
    """
    with service.database.read() as connection:
        visible_row(connection, runs, number, caller, "run")
        query = sa.select(artefacts).where(artefacts.c.run == number, artefacts.c.name == name)
        row = connection.execute(query).one_or_none()
    if row is None:
        raise not_found("artefact", name)
    disposition = "inline" if row.type in _INLINE_TYPES and not save else "attachment"
    headers = {"Content-Security-Policy": _SANDBOX, "ETag": f'"{row.blob}"', "Cache-Control": "private, no-cache"}
    path, filename = service.store.path(row.blob), name.rpartition("/")[2]
    if path is None:
        headers["Content-Disposition"] = f"{disposition}; filename*=utf-8''{quote(filename)}"
        content = RemoteContent(partial(service.store.read, row.blob), row.bytes, row.type)
        return range_response(request.headers, content, headers)
    return FileResponse(
        path, media_type=row.type, filename=filename, content_disposition_type=disposition, headers=headers
    )


@router.delete("/runs/{number}/artefacts/{name:path}", status_code=204)
async def remove(service: ServiceOf, caller: Author, number: Number, name: File) -> None:
    """Delete an artefact. Its content is deleted later, if no other artefact has it."""

    def work(transaction: Transaction) -> None:
        visible_row(transaction.connection, runs, number, caller, "run")
        deleted = transaction.execute(artefacts.delete().where(artefacts.c.run == number, artefacts.c.name == name))
        if not deleted.rowcount:
            raise not_found("artefact", name)
        record_action(transaction, caller, "delete artefact", f"run:{number}", name=name)
        transaction.notify(f"run:{number}")

    await service.write_async(work)


def _remaining_quota(service: ServiceOf, caller: Caller, number: int) -> tuple[int, int]:
    """Return the owner of a run, and the bytes that this user may still store."""
    with service.database.read() as connection:
        owner = visible_row(connection, runs, number, caller, "run").owner
        remaining = remaining_bytes(connection, owner, service.config.limits)
    if remaining <= 0:
        raise quota_exceeded()
    return owner, remaining


@dataclass(frozen=True)
class NewArtefact:
    """A stored content that becomes an artefact of a run."""

    run: int
    name: str
    kind: str
    content: StoredContent


def _save_artefact(service: ServiceOf, transaction: Transaction, caller: Caller, new: NewArtefact) -> tuple[bool, Any]:
    """Save the row of an artefact; return whether it is new, and the row."""
    run, content = visible_row(transaction.connection, runs, new.run, caller, "run"), new.content
    if not service.store.is_new(content.sha256):
        raise RequestError(409, "the content was deleted meanwhile", hint="send it again")
    same = artefacts.c.run == new.run, artefacts.c.name == new.name
    replaced = transaction.scalar(sa.select(artefacts.c.bytes).where(*same))
    remaining = remaining_bytes(transaction.connection, run.owner, service.config.limits)
    if content.bytes - (replaced or 0) > remaining:
        raise quota_exceeded()
    if transaction.scalar(sa.select(blobs.c.sha256).where(blobs.c.sha256 == content.sha256)) is None:
        row = {"sha256": content.sha256, "bytes": content.bytes, "created": time.time()}
        transaction.execute(blobs.insert().values(row))
    transaction.execute(artefacts.delete().where(*same))
    values: dict[str, Any] = {"owner": run.owner, "group": run.group, "run": new.run, "job": run.job}
    values |= {"name": new.name, "kind": new.kind, "type": _media_type(new.name), "created": time.time()}
    number = transaction.add(artefacts, **values, blob=content.sha256, bytes=content.bytes)
    record_action(transaction, caller, "upload", f"run:{new.run}", name=new.name, bytes=content.bytes)
    transaction.notify(f"run:{new.run}")
    query = sa.select(artefacts).where(artefacts.c.id == number)
    return replaced is None, transaction.execute(query).mappings().one()


def _media_type(name: str) -> str:
    known = {".jsonl": "text/plain", ".yaml": "text/plain", ".log": "text/plain", ".md": "text/plain"}
    ending = f".{name.rpartition('.')[2]}".lower()
    return known.get(ending) or mimetypes.guess_type(name)[0] or "application/octet-stream"


def _artefact(row: Any) -> Artefact:
    return Artefact(**{name: row[name] for name in Artefact.model_fields if name != "sha256"}, sha256=row["blob"])
