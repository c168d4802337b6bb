"""Login, logout and static files."""

from __future__ import annotations

from pathlib import PurePath
from urllib.parse import parse_qsl

from fastapi import Request, Response
from fastapi.responses import RedirectResponse
from starlette.concurrency import run_in_threadpool

from clew.server.api import accounts
from clew.server.api.dependencies import address_of
from clew.server.dashboard import layout, render
from clew.server.problems import RequestError

router = layout.router()
_CACHE_FOREVER = "public, max-age=31536000, immutable"
_MAX_FIELDS = 5000
"""Fields of a form."""


async def form_values(request: Request) -> dict[str, str]:
    """Return the fields of a form.

    Of several values the last counts: a ticked box overrides the hidden field before it.

    Raises:
        RequestError: there are too many fields (422).
    """
    text = (await request.body()).decode("utf-8", "replace")
    try:
        pairs = await run_in_threadpool(parse_qsl, text, keep_blank_values=True, max_num_fields=_MAX_FIELDS)
    except ValueError:
        raise RequestError(422, f"a form has at most {_MAX_FIELDS:,} fields") from None
    return dict(pairs)


@router.get("/login")
async def login_page(next: str = "/") -> Response:
    """The login page."""
    return layout.html(render.page("login.html", error="", next=_local_path(next)))


@router.post("/login")
async def log_in(request: Request) -> Response:
    """Exchange a token for a session cookie."""
    form, service = await form_values(request), request.app.state.service
    target = _local_path(form.get("next", "/"))
    answer = RedirectResponse(target, 303)
    try:
        layout.check_origin(request)
        text = await accounts.open_session(service, form.get("token", "").strip()[:200], address_of(request))
    except RequestError as error:
        return layout.html(render.page("login.html", error=str(error), next=target), error.status)
    accounts.set_session_cookie(service, answer, text)
    return answer


@router.post("/logout")
async def log_out(request: Request, viewer: layout.Viewer) -> Response:
    """End the session."""
    answer = RedirectResponse("/login", 303)
    await accounts.log_out(request.app.state.service, viewer, answer)
    return answer


@router.get("/static/{mark}/{name}")
def static(request: Request, mark: str, name: str) -> Response:
    """Return a style sheet, script or picture. The `mark` in the address changes with the content."""
    content, media_type = render.content(name), render.MEDIA_TYPES.get(PurePath(name).suffix)
    if content is None or media_type is None:
        raise RequestError(404, "there is no such file")
    headers = {"Cache-Control": _CACHE_FOREVER, "Vary": "Accept-Encoding"}
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(render.compressed(name), media_type=media_type, headers={**headers, "Content-Encoding": "gzip"})
    return Response(content, media_type=media_type, headers=headers)


def _local_path(address: str) -> str:
    """Return a path of this server; `/` for any other address."""
    return address if address.startswith("/") and not address.startswith(("//", "/\\")) else "/"
