"""What the API says when it does not do what was asked: `{"error": ..., "where": ..., "do": ...}`."""

from __future__ import annotations

import logging
from typing import Any

import sqlalchemy as sa
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from clew.errors import ClewError, UserError

_LOG = logging.getLogger("clew.server")


class Problem(BaseModel):
    """The body of every answer that is not a success."""

    error: str
    where: str = ""
    do: str = ""


class RefusedError(ClewError):
    """A request that is not done; `status` is HTTP's."""

    def __init__(self, status: int, error: str, *, where: str = "", do: str = "", wait: float | None = None) -> None:
        super().__init__(error)
        self.status = status
        self.where = where
        self.do = do
        self.wait = wait
        """Seconds after which trying again may help."""


def missing(what: str, name: object) -> RefusedError:
    """It is not there, or not the caller's to see: the two are not told apart."""
    return RefusedError(
        404, f"no such {what}: {name}", do="look at what there is, or ask its owner to share it with a group"
    )


def forbidden(error: str, do: str = "use a token that may; `clew token create` makes one") -> RefusedError:
    """The caller is known and may not."""
    return RefusedError(403, error, do=do)


def answer(status: int, error: str, *, where: str = "", do: str = "", wait: float | None = None) -> JSONResponse:
    """A problem as a response."""
    headers = {} if wait is None else {"Retry-After": str(max(1, round(wait)))}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(Problem(error=error, where=where, do=do).model_dump(), status, headers)


def install(app: FastAPI) -> None:
    """Give every exception its answer."""
    app.add_exception_handler(RefusedError, _refused)
    app.add_exception_handler(UserError, _user)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RecursionError, _deep)
    app.add_exception_handler(sa.exc.DBAPIError, _database)
    app.add_exception_handler(sa.exc.TimeoutError, _busy)
    app.add_exception_handler(Exception, _broken)


def _refused(_: Request, error: Any) -> JSONResponse:
    return answer(error.status, str(error), where=error.where, do=error.do, wait=error.wait)


def _user(_: Request, error: Exception) -> JSONResponse:
    return answer(422, str(error), do="correct it and send it again")


def _invalid(_: Request, error: Any) -> JSONResponse:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    more = f" (and {len(error.errors()) - 1} more)" if len(error.errors()) > 1 else ""
    return answer(422, f"{first['msg']}{more}", where=where, do="see /api/v1/openapi.json for what is allowed")


def _http(_: Request, error: Any) -> JSONResponse:
    made = answer(error.status_code, str(error.detail), do="see /api/v1/openapi.json for what there is")
    made.headers.update(error.headers or {})
    return made


def _deep(_: Request, __: Exception) -> JSONResponse:
    return answer(422, "the document is nested too deeply", do="send fewer levels")


def _database(request: Request, error: Any) -> JSONResponse:
    if isinstance(error, sa.exc.DataError):
        return answer(422, "a value does not fit the database", do="send a smaller one")
    if isinstance(error, sa.exc.IntegrityError):
        return answer(409, "it conflicts with what is there", do="look at what there is, and send something else")
    _LOG.error("database: %s", error.orig, extra={"path": request.url.path})
    return answer(503, "the database does not answer", do="try again soon", wait=2)


def _busy(_: Request, __: Exception) -> JSONResponse:
    return answer(503, "too much is asked of the database at once", do="try again soon", wait=5)


def _broken(request: Request, error: Exception) -> JSONResponse:
    _LOG.exception("broken: %s", error, exc_info=error, extra={"path": request.url.path})
    return answer(500, "a fault of the server's", do="tell its administrator the time; the log has the rest")
