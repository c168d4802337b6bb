"""The page of the REST interface: routes and types, from the server's OpenAPI document."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from fastapi.openapi.utils import get_openapi
from markdown_text import code, escaped, table

from clew.server.api import routers
from clew.server.api.route_list import route_list

_PROBLEM = "Problem"


def rest_markdown() -> str:
    """Return all routes by subject, then all types, as Markdown."""
    document = get_openapi(title="clew", version="1", routes=[each for one in routers() for each in one.routes])
    access = {(each.method, each.path.replace(":path}", "}")): each.access for each in route_list()}
    subjects: dict[str, list[str]] = {}
    for path, methods in sorted(document["paths"].items()):
        for method, operation in methods.items():
            text = "\n\n".join(_route(method.upper(), path, operation, access))
            subjects.setdefault((operation.get("tags") or ["other"])[0], []).append(text)
    parts = [part for name in sorted(subjects) for part in (f"## {name.capitalize()}", *subjects[name])]
    schemas = document["components"]["schemas"]
    parts += ["## Types", *(_schema(name, schemas[name]) for name in sorted(schemas) if not _is_page(name))]
    return "\n\n".join(parts)


def _is_page(name: str) -> bool:
    return name.startswith("ResultPage_")


def _route(method: str, path: str, operation: dict[str, Any], access: dict[tuple[str, str], str]) -> Iterator[str]:
    yield f"### {method} {path}"
    yield f"{escaped(operation.get('description', ''))}"
    facts = [f"Scope: {access[method, path]}."]
    body = _content(operation.get("requestBody", {}))
    if body:
        facts.append(f"Body: {body}.")
    for status, answer in operation["responses"].items():
        if status.startswith("2"):
            facts.append(f"Answer {status}: {_content(answer) or 'empty'}.")
    yield " ".join(facts)
    parameters = operation.get("parameters", ())
    if parameters:
        rows = [[code(one["name"]), one["in"], code(_type(one["schema"])), _meaning(one)] for one in parameters]
        yield table(["parameter", "in", "type", "meaning"], rows)


def _meaning(field: dict[str, Any]) -> str:
    schema = field.get("schema", field)
    text = escaped(field.get("description") or schema.get("description") or "")
    default = schema.get("default")
    return f"{text} Default: {code(json.dumps(default))}." if default not in (None, "", [], {}) else text


def _content(part: dict[str, Any]) -> str:
    texts = []
    for kind, each in part.get("content", {}).items():
        name = _type(each.get("schema", {}))
        texts.append(code(name) if kind == "application/json" else f"{code(kind)}")
    return " or ".join(texts)


def _schema(name: str, schema: dict[str, Any]) -> str:
    required = set(schema.get("required", ()))
    rows = []
    for field, each in schema.get("properties", {}).items():
        needed = " Required." if field in required else ""
        rows.append([code(field), code(_type(each)), f"{_meaning(each)}{needed}".strip()])
    text = escaped(schema.get("description", "").split("\n\n")[0])
    return "\n\n".join(part for part in (f"### {name}", text, table(["field", "type", "meaning"], rows)) if part)


def _type(schema: dict[str, Any]) -> str:
    """Return a JSON schema as a short text: `integer`, `list of Job`, `string or null`."""
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        return f"page of {name.removeprefix('ResultPage_').rstrip('_')}" if _is_page(name) else name
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type(each) for each in schema["anyOf"]))
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    if "const" in schema:
        return str(schema["const"])
    kind = str(schema.get("type", "any"))
    if kind == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"mapping to {_type(schema['additionalProperties'])}"
    return "mapping" if kind == "object" else kind
