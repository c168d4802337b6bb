"""What all pages share: who looks at them, the frame around them, and what is shown when something is wrong."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from typing import Annotated, Any
from urllib.parse import quote, urlencode, urlsplit

import sqlalchemy as sa
from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool

from clew.errors import UserError
from clew.server.accounts.callers import Caller
from clew.server.api.dependencies import COOKIE, address_of
from clew.server.dashboard import render
from clew.server.database.tables import jobs, runs
from clew.server.problems import RefusedError
from clew.server.service import Service


async def _viewer(request: Request) -> Caller:
    """Who has logged in. Changes must come from a page of this server: browsers say where a form was sent from."""
    service: Service = request.app.state.service
    text = request.cookies.get(COOKIE, "")
    found = service.people.known(text) if text else None
    if found is None and text:
        found = await run_in_threadpool(service.people.find, text)
    if found is None or "read" not in found.scopes:
        raise RefusedError(401, "log in first")
    if request.method != "GET":
        check_origin(request)
    caller = service.people.at(found, address_of(request))
    request.state.caller = caller
    return caller


Viewer = Annotated[Caller, Depends(_viewer)]
Phrase = Annotated[str, Query(max_length=200)]


def check_origin(request: Request) -> None:
    """That a form was sent by a page of this server.

    Raises:
        RefusedError: it was not, or nobody says.
    """
    try:
        origin = urlsplit(request.headers.get("origin", "")).netloc
    except ValueError:
        origin = ""
    if not origin or origin != request.headers.get("host", ""):
        raise RefusedError(
            403, "this form was not sent from a page of this server", do="open the page and send it again"
        )


class _PageRoute(APIRoute):
    """Answers people: a page that says what is wrong, or the one to log in on."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def answered(request: Request) -> Response:
            try:
                return await handle(request)
            except RefusedError as error:
                return _wrong(request, error.status, str(error), error.do)
            except RequestValidationError:
                return _wrong(request, 404, "there is no such page", "")
            except UserError as error:
                return _wrong(request, 422, str(error), "")

        return answered


def router() -> APIRouter:
    """For pages."""
    return APIRouter(route_class=_PageRoute, default_response_class=HTMLResponse, include_in_schema=False)


def _wrong(request: Request, status: int, text: str, do: str) -> Response:
    if request.headers.get("accept", "").startswith("application/json"):
        return JSONResponse({"error": text, "do": do}, status)
    if status == 401:
        back = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        return RedirectResponse("/login" if back == "/" else f"/login?next={quote(back, safe='')}", 303)
    title = {403: "Not allowed", 404: "Not here"}.get(status, "That did not work")
    caller = getattr(request.state, "caller", None)
    if caller is None:
        return html(render.page("login.html", wrong=text, next="/"), status)
    return html(render.page("error.html", place="", person=caller, counts={}, title=title, text=text, do=do), status)


def html(text: str, status: int = 200) -> HTMLResponse:
    """A page, with the policy that lets it run our scripts and nobody else's."""
    # without a referrer at home, browsers would not say where a form was sent from
    headers = {"Content-Security-Policy": render.POLICY, "Referrer-Policy": "same-origin"}
    return HTMLResponse(text.encode("utf-8", "replace"), status, headers=headers)


def page(request: Request, template: str, place: str, *, status: int = 200, **values: Any) -> HTMLResponse:
    """A page in its frame."""
    caller: Caller = request.state.caller
    shown = {"person": caller, "counts": _counts(request.app.state.service, caller), "place": place}
    return html(render.page(template, **shown, **values), status)


def server(request: Request) -> str:
    """The address that this server is reached at, as the browser has it."""
    return f"{request.url.scheme}://{request.headers.get('host', request.url.netloc)}"


def link(path: str, **query: Any) -> str:
    """An address with what is set of a query."""
    kept = {name: value for name, value in query.items() if value not in (None, "")}
    return f"{path}?{urlencode(kept, doseq=True)}" if kept else path


def _counts(service: Service, caller: Caller) -> dict[str, int]:
    """What goes on now, for the menu."""
    fresh = time.time() - 86400
    running = sa.select(sa.func.count()).where(caller.seen(runs), runs.c.state == "running", runs.c.updated > fresh)
    waiting = sa.select(sa.func.count()).where(caller.seen(jobs), jobs.c.state.in_(("waiting", "claimed", "running")))
    with service.database.read() as connection:
        return {"runs": connection.scalar(running) or 0, "jobs": connection.scalar(waiting) or 0}
