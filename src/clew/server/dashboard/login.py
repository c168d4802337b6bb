"""Logging in and out, and the files that pages need."""

from __future__ import annotations

from urllib.parse import parse_qsl

from fastapi import Request, Response
from fastapi.responses import FileResponse, RedirectResponse

from clew.server.api import accounts
from clew.server.api.dependencies import address_of
from clew.server.dashboard import layout, render
from clew.server.problems import RefusedError

router = layout.router()
_FOR_EVER = "public, max-age=31536000, immutable"


async def form(request: Request) -> dict[str, str]:
    """What a browser sent; of several values the last, which is how a ticked box overrules the hidden one before it."""
    return dict(parse_qsl((await request.body()).decode("utf-8", "replace"), keep_blank_values=True))


@router.get("/login")
async def ask(next: str = "/") -> Response:
    """The form to log in with."""
    return layout.html(render.page("login.html", wrong="", next=_inside(next)))


@router.post("/login")
async def log_in(request: Request) -> Response:
    """A token for a session's cookie."""
    given, service = await form(request), request.app.state.service
    answer = RedirectResponse(_inside(given.get("next", "/")), 303)
    try:
        layout.check_origin(request)
        text = await accounts.open_session(service, given.get("token", "").strip()[:200], address_of(request))
    except RefusedError as error:
        return layout.html(
            render.page("login.html", wrong=str(error), next=_inside(given.get("next", "/"))), error.status
        )
    accounts.give_cookie(service, answer, text)
    return answer


@router.post("/logout")
async def log_out(request: Request, viewer: layout.Viewer) -> Response:
    """End the session."""
    answer = RedirectResponse("/login", 303)
    await accounts.log_out(request.app.state.service, viewer, answer)
    return answer


@router.get("/static/{mark}/{name}")
def static(request: Request, mark: str, name: str) -> Response:
    """A style sheet, a script, a picture. The mark in the address is that of the content."""
    path = render.file(name)
    if path is None:
        raise RefusedError(404, "there is no such file")
    headers, kind = {"Cache-Control": _FOR_EVER, "Vary": "Accept-Encoding"}, render.KINDS[path.suffix]
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(render.packed(name), media_type=kind, headers={**headers, "Content-Encoding": "gzip"})
    return FileResponse(path, media_type=kind, headers=headers)


def _inside(address: str) -> str:
    """A path of this server; whatever else was asked for is the front page."""
    return address if address.startswith("/") and not address.startswith(("//", "/\\")) else "/"
