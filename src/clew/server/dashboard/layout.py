"""What all pages share: the user who views them, the layout around them, and error pages."""

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
from clew.server.accounts.caller import Caller
from clew.server.api.dependencies import SESSION_COOKIE, address_of
from clew.server.dashboard import render
from clew.server.database.tables import jobs, runs
from clew.server.problems import RequestError
from clew.server.service import Service


async def _viewer(request: Request) -> Caller:
    """Return the user who has logged in. Changes must come from a page of this server: browsers send the origin."""
    service: Service = request.app.state.service
    text = request.cookies.get(SESSION_COOKIE, "")
    caller = service.tokens.cached(text) if text else None
    if caller is None and text:
        caller = await run_in_threadpool(service.tokens.look_up, text)
    if caller is None:
        raise service.rate_limit.rejection(address_of(request), has_token=bool(text))
    if "read" not in caller.scopes:
        raise RequestError(401, "log in first")
    if request.method != "GET":
        check_origin(request)
    caller = service.tokens.with_address(caller, address_of(request))
    request.state.caller = caller
    return caller


Viewer = Annotated[Caller, Depends(_viewer)]
Phrase = Annotated[str, Query(max_length=200)]


def check_origin(request: Request) -> None:
    """Check that a form was sent from a page of this server.

    Raises:
        RequestError: it was sent from elsewhere, or the browser sent no origin (403).
    """
    try:
        origin = urlsplit(request.headers.get("origin", "")).netloc
    except ValueError:
        origin = ""
    if not origin or origin != request.headers.get("host", ""):
        raise RequestError(
            403, "this form was not sent from a page of this server", hint="open the page and send it again"
        )


class _PageRoute(APIRoute):
    """Answers errors with a page: the login page, or one that shows the error."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_errors(request: Request) -> Response:
            try:
                return await handle(request)
            except RequestError as error:
                return _error_page(request, error.status, str(error), error.hint)
            except RequestValidationError:
                return _error_page(request, 404, "there is no such page", "")
            except UserError as error:
                return _error_page(request, 422, str(error), "")

        return handle_errors


def router() -> APIRouter:
    """Return a router for pages."""
    return APIRouter(route_class=_PageRoute, default_response_class=HTMLResponse, include_in_schema=False)


def _error_page(request: Request, status: int, text: str, hint: str) -> Response:
    if request.headers.get("accept", "").startswith("application/json"):
        return JSONResponse({"error": text, "hint": hint}, status)
    if status == 401:
        back = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        return RedirectResponse("/login" if back == "/" else f"/login?next={quote(back, safe='')}", 303)
    title = {403: "Not allowed", 404: "Not found"}.get(status, "Error")
    caller = getattr(request.state, "caller", None)
    if caller is None:
        return html(render.page("login.html", error=text, next="/"), status)
    return html(
        render.page("error.html", section="", user=caller, counts={}, title=title, text=text, hint=hint), status
    )


def html(text: str, status: int = 200) -> HTMLResponse:
    """Return a page, with a policy that allows only scripts of this server."""
    # without a referrer for this server, browsers would not send the origin of a form
    headers = {"Content-Security-Policy": render.CONTENT_SECURITY_POLICY, "Referrer-Policy": "same-origin"}
    return HTMLResponse(text.encode("utf-8", "replace"), status, headers=headers)


def page(request: Request, template: str, section: str, *, status: int = 200, **values: Any) -> HTMLResponse:
    """Return a page inside the layout.

    Args:
        request: The request.
        template: File name of the template.
        section: The entry of the menu to highlight.
        status: HTTP status.
        values: Values for the template.
    """
    caller: Caller = request.state.caller
    shared = {"user": caller, "counts": _counts(request.app.state.service, caller), "section": section}
    return html(render.page(template, **shared, **values), status)


def server(request: Request) -> str:
    """Return the address of this server, as the browser sees it."""
    return f"{request.url.scheme}://{request.headers.get('host', request.url.netloc)}"


def link(path: str, **query: Any) -> str:
    """Return an address with the query parameters that are set."""
    parameters = {name: value for name, value in query.items() if value not in (None, "")}
    return f"{path}?{urlencode(parameters, doseq=True)}" if parameters else path


def _counts(service: Service, caller: Caller) -> dict[str, int]:
    """Return the numbers of running runs and active jobs, for the menu."""
    yesterday = time.time() - 86400
    running = sa.select(sa.func.count()).where(
        caller.visible(runs), runs.c.state == "running", runs.c.updated > yesterday
    )
    active = sa.select(sa.func.count()).where(caller.visible(jobs), jobs.c.state.in_(("waiting", "claimed", "running")))
    with service.database.read() as connection:
        return {"runs": connection.scalar(running) or 0, "jobs": connection.scalar(active) or 0}
