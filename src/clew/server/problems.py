"""Errors of requests, and the JSON answer to each: `{"error": ..., "where": ..., "hint": ...}`."""

from __future__ import annotations

import logging
from typing import Any

import sqlalchemy as sa
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from clew.core.validation_text import validation_text
from clew.errors import ClewError, UserError

_LISTS = {
    "token": "`clew token list` shows yours",
    "group": "GET /api/v1/groups lists them, and administrators create them",
}
"""Hints for what is not shared with a group."""
_LOG = logging.getLogger("clew.server")


class Problem(BaseModel):
    """The body of every answer that is not a success."""

    error: str
    """What is wrong."""
    where: str = ""
    """The part of the request that is wrong."""
    hint: str = ""
    """What to do about it."""


class RequestError(ClewError):
    """A request that the server refuses."""

    def __init__(
        self, status: int, error: str, *, where: str = "", hint: str = "", retry_after: float | None = None
    ) -> None:
        """Make the error.

        Args:
            status: The HTTP status of the answer.
            error: What is wrong.
            where: The part of the request that is wrong.
            hint: What to do about it.
            retry_after: Seconds after which the same request may succeed.
        """
        super().__init__(error)
        self.status = status
        self.where = where
        self.hint = hint
        self.retry_after = retry_after


def not_found(kind: str, name: object) -> RequestError:
    """Return a 404 error. It is the same whether the thing does not exist or the caller may not see it."""
    hint = _LISTS.get(kind, "look at what there is, or ask its owner to share it with a group")
    return RequestError(404, f"no such {kind}: {name}", hint=hint)


def forbidden(error: str, hint: str = "use a token that has the right; `clew token create` makes one") -> RequestError:
    """Return a 403 error: the caller is known, but lacks the right."""
    return RequestError(403, error, hint=hint)


def problem_response(
    status: int, error: str, *, where: str = "", hint: str = "", retry_after: float | None = None
) -> JSONResponse:
    """Return a problem as an HTTP response."""
    headers = {} if retry_after is None else {"Retry-After": str(max(1, round(retry_after)))}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(Problem(error=error, where=where, hint=hint).model_dump(), status, headers)


def install_handlers(app: FastAPI) -> None:
    """Register the answer to each kind of exception."""
    app.add_exception_handler(RequestError, _request_error)
    app.add_exception_handler(UserError, _user_error)
    app.add_exception_handler(RequestValidationError, _invalid_request)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RecursionError, _too_deep)
    app.add_exception_handler(UnicodeEncodeError, _not_text)
    app.add_exception_handler(sa.exc.DBAPIError, _database_error)
    app.add_exception_handler(sa.exc.TimeoutError, _database_busy)
    app.add_exception_handler(Exception, _internal_error)


def _request_error(_: Request, error: Any) -> JSONResponse:
    return problem_response(error.status, str(error), where=error.where, hint=error.hint, retry_after=error.retry_after)


def _user_error(_: Request, error: Exception) -> JSONResponse:
    return problem_response(422, str(error), hint="correct it and send it again")


def _invalid_request(_: Request, error: Any) -> JSONResponse:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    more = f" (and {len(error.errors()) - 1} more)" if len(error.errors()) > 1 else ""
    return problem_response(
        422, f"{validation_text(first)}{more}", where=where, hint="see /api/v1/openapi.json for what is allowed"
    )


def _http_error(_: Request, error: Any) -> JSONResponse:
    response = problem_response(
        error.status_code, str(error.detail), hint="see /api/v1/openapi.json for the routes there are"
    )
    response.headers.update(error.headers or {})
    return response


def _too_deep(_: Request, __: Exception) -> JSONResponse:
    return problem_response(422, "the document is nested too deeply", hint="send fewer levels")


def _not_text(_: Request, __: Exception) -> JSONResponse:
    return problem_response(422, "a text contains half of a surrogate pair", hint="send valid Unicode")


def _database_error(request: Request, error: Any) -> JSONResponse:
    if isinstance(error, sa.exc.DataError):
        return problem_response(422, "a value does not fit the database", hint="send a smaller one")
    if isinstance(error, sa.exc.IntegrityError):
        return problem_response(409, "it conflicts with what is stored", hint="look at what there is, then change it")
    _LOG.error("database: %s", error.orig, extra={"path": request.url.path})
    return problem_response(503, "the database does not answer", hint="try again soon", retry_after=2)


def _database_busy(_: Request, __: Exception) -> JSONResponse:
    return problem_response(503, "too many database queries at once", hint="try again soon", retry_after=5)


def _internal_error(request: Request, error: Exception) -> JSONResponse:
    _LOG.exception("internal error: %s", error, exc_info=error, extra={"path": request.url.path})
    return problem_response(
        500, "an internal error of the server", hint="give its administrator the time; the log has the details"
    )
