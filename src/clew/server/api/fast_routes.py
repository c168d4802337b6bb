"""Routes that are asked most. What FastAPI finds out anew for every request, and spends more time on than all else, is
written down here; the schema still comes from the function's signature.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError

from clew.server.api.dependencies import allowed, identified, service_of
from clew.server.problems import RefusedError, missing

M = TypeVar("M", bound=BaseModel)
_WRONG = 100
"""Mistakes in a body that are told one by one: to write down millions takes more than the body."""


def quick(model: type[BaseModel], *scopes: str) -> type[APIRoute]:
    """The class of a route whose coroutine takes `service`, `caller` (with one of these scopes), `body` (such a model)
    and, where the path has one, `number`. It returns a model, or a response.
    """

    class Quick(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            async def answered(request: Request) -> Response:
                scheme, _, text = request.headers.get("Authorization", "").partition(" ")
                bearer = text.strip() if scheme.lower() == "bearer" else None
                caller = allowed(await identified(request, bearer), *scopes)
                given = {name: _number(text) for name, text in request.path_params.items()}
                body = _checked(model, await request.body())
                found = await self.endpoint(service=service_of(request), caller=caller, body=body, **given)
                if isinstance(found, Response):
                    return found
                return Response(found.model_dump_json(), media_type="application/json")

            return answered

    return Quick


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19 and int(text)):
        raise missing("run", text)
    return int(text)


def _checked(model: type[M], data: bytes) -> M:
    try:
        return _parsed(model, data)
    except ValidationError as error:
        if error.error_count() > _WRONG:
            raise RefusedError(422, f"{error.error_count()} things are wrong with it", where="body") from None
        told = error.errors(include_url=False, include_context=False, include_input=False)
        raise RequestValidationError([{**each, "loc": ("body", *each["loc"])} for each in told]) from None


def _parsed(model: type[M], data: bytes) -> M:
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        if error.error_count() > 1 or error.errors()[0]["type"] != "json_invalid":
            raise
        try:
            document = json.loads(data)  # takes what a `Writer` writes, halves of surrogate pairs included
        except (ValueError, RecursionError):
            raise error from None
    return model.model_validate(document)
