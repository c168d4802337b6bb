"""Routes for saved views of the list of runs."""

from __future__ import annotations

import time

import sqlalchemy as sa
from fastapi import APIRouter
from pydantic import BaseModel

from clew.server.accounts.audit import record_action
from clew.server.api.dependencies import PROBLEMS, Author, Body, Name, Number, Reader, ServiceOf, Text, visible_row
from clew.server.api.fast_routes import BoundedRoute
from clew.server.database.tables import views
from clew.server.database.writer import Transaction

router = APIRouter(prefix="/api/v1/views", tags=["views"], responses=PROBLEMS, route_class=BoundedRoute)


class NewView(Body):
    """A view to save; one of the same name is replaced."""

    name: Name
    query: Text
    """The part of the link after the question mark."""
    group: Name | None = None
    """A group that sees it."""


class ViewRow(BaseModel):
    """A saved view."""

    id: int
    name: str
    query: str
    created: float


@router.get("")
def list_views(service: ServiceOf, caller: Reader) -> list[ViewRow]:
    """List the views of the caller and of the caller's groups, by name."""
    query = sa.select(views).where(caller.visible(views)).order_by(views.c.name).limit(500)
    with service.database.read() as connection:
        return [ViewRow.model_validate(dict(row)) for row in connection.execute(query).mappings()]


@router.post("", status_code=201)
async def save_view(service: ServiceOf, caller: Author, body: NewView) -> ViewRow:
    """Save a view."""

    def work(transaction: Transaction) -> ViewRow:
        group = caller.group_id(body.group, transaction.connection)
        values = {"query": body.query.lstrip("?"), "group": group, "created": time.time()}
        same = views.c.owner == caller.user, views.c.name == body.name
        number = transaction.scalar(sa.select(views.c.id).where(*same))
        if number is None:
            number = transaction.add(views, owner=caller.user, name=body.name, **values)
        else:
            transaction.execute(views.update().where(views.c.id == number).values(values))
        record_action(transaction, caller, "save view", f"view:{number}", name=body.name)
        return ViewRow(id=number, name=body.name, query=str(values["query"]), created=time.time())

    return await service.write_async(work)


@router.delete("/{number}", status_code=204)
async def delete_view(service: ServiceOf, caller: Author, number: Number) -> None:
    """Delete a view."""

    def work(transaction: Transaction) -> None:
        visible_row(transaction.connection, views, number, caller, "view")
        transaction.execute(views.delete().where(views.c.id == number))
        record_action(transaction, caller, "delete view", f"view:{number}")

    await service.write_async(work)
