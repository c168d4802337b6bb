"""A faster route class for the most frequent requests.

FastAPI analyses the parameters of a route for every request, which takes longer than all else. Here they are fixed; the
OpenAPI schema still comes from the signature of the function.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError

from clew.server.api.dependencies import authenticate, bearer_token, require_scope, service_of
from clew.server.problems import RequestError, not_found

M = TypeVar("M", bound=BaseModel)
_MAX_LISTED_ERRORS = 100
"""Errors in a body that are listed one by one; a list of millions would be larger than the body."""
_LARGE_BODY = 50_000
"""Bytes of a body that may have so many mistakes that to list them takes long."""


def fast_route(model: type[BaseModel], *scopes: str) -> type[APIRoute]:
    """Return the class of a route.

    Its coroutine takes `service`, `caller`, `body` and, if the path has one, `number`. It returns a model or a
    response.

    Args:
        model: The type of the body.
        scopes: The caller must have one of these.
    """

    class FastRoute(APIRoute):
        required_scopes = scopes

        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            async def handle(request: Request) -> Response:
                caller = require_scope(await authenticate(request, bearer_token(request)), *scopes)
                parameters = {name: _number(text) for name, text in request.path_params.items()}
                body = _checked(model, await request.body())
                result = await self.endpoint(service=service_of(request), caller=caller, body=body, **parameters)
                if isinstance(result, Response):
                    return result
                return Response(result.model_dump_json(), media_type="application/json")

            return handle

    return FastRoute


class BoundedRoute(APIRoute):
    """Refuses a large body full of mistakes in a short time. FastAPI would list millions of them, one by one."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        model = None if self.body_field is None else self.body_field.field_info.annotation
        if not (isinstance(model, type) and issubclass(model, BaseModel)):
            return handle

        async def handle_bounded(request: Request) -> Response:
            data = await request.body()
            if len(data) > _LARGE_BODY:
                _checked(model, data)
            return await handle(request)

        return handle_bounded


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19 and int(text)):
        raise not_found("run", text)
    return int(text)


def _checked(model: type[M], data: bytes) -> M:
    try:
        return _parsed(model, data)
    except ValidationError as error:
        if error.error_count() > _MAX_LISTED_ERRORS:
            raise RequestError(422, f"{error.error_count()} things are wrong with the body", where="body") from None
        errors = error.errors(include_url=False, include_context=False, include_input=False)
        raise RequestValidationError([{**each, "loc": ("body", *each["loc"])} for each in errors]) from None


def _parsed(model: type[M], data: bytes) -> M:
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        if error.error_count() > 1 or error.errors()[0]["type"] != "json_invalid":
            raise
        try:
            document = json.loads(data)  # also accepts halves of surrogate pairs, which a run may record
        except (ValueError, RecursionError):
            raise error from None
    return model.model_validate(document)
