"""Settings for people: every key with its value, its type and its meaning."""

from __future__ import annotations

import ast
import inspect
import itertools
import json
import textwrap
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin

from clew.core.config import Section


@dataclass(frozen=True)
class SettingText:
    """One setting."""

    key: str
    """The key with its sections: `train.optimizer.lr`."""
    value: str
    type: str
    meaning: str
    """Empty if the code says nothing about it."""


def setting_texts(section: type[Section], values: Any, prefix: str = "") -> Iterator[SettingText]:
    """Yield every setting of a config class, the settings of its sections included.

    Args:
        section: The config class.
        values: The values in use, as `to_data` returns them. Of a section that is not in use the defaults are shown.
        prefix: Key of the section, with a dot.

    Example:
        >>> class Fit(Section):
        ...     steps: int = 5
        >>> [(each.key, each.value, each.type) for each in setting_texts(Fit, {"steps": 7})]
        [('steps', '7', 'int')]
    """
    meanings = field_meanings(section)
    for name, info in section.model_fields.items():
        inner = _section(info.annotation)
        default = None if info.is_required() else info.get_default(call_default_factory=True, validated_data={})
        value = values.get(name) if isinstance(values, dict) else default
        if inner is None or not isinstance(value, (dict, Section)):
            yield SettingText(f"{prefix}{name}", _text(value), type_text(info.annotation), meanings.get(name, ""))
        if inner is not None:
            data = value.model_dump(mode="json") if isinstance(value, Section) else value
            yield from setting_texts(inner, data, f"{prefix}{name}.")


def field_meanings(section: type[Section]) -> dict[str, str]:
    """Return the texts below the fields of a config class, by field; else their descriptions."""
    meanings = {name: info.description for name, info in section.model_fields.items() if info.description}
    for kind in reversed(section.__mro__):
        if not issubclass(kind, Section) or kind is Section:
            continue
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
        except (OSError, TypeError, SyntaxError):  # made by a function, or typed into a session
            continue
        body = getattr(tree.body[0], "body", [])
        for field, text in itertools.pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and _is_text(text):
                meanings[field.target.id] = " ".join(text.value.value.split())
    return meanings


def type_text(annotation: Any) -> str:
    """Return a type as a user writes values: `int`, `a|b`, `list of str`, `float or null`."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is typing.Annotated:
        return type_text(arguments[0])
    if origin is Literal:
        return "|".join(str(each) for each in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(type_text(each) for each in arguments))
    if annotation is type(None):
        return "null"
    if origin in (list, tuple):
        return f"list of {type_text(arguments[0])}" if arguments else "list"
    if origin is dict:
        return "mapping"
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return "section"
    return getattr(annotation, "__name__", str(annotation))


def _is_text(node: ast.stmt) -> typing.TypeGuard[Any]:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _section(annotation: Any) -> type[Section] | None:
    """The config class in a type, such as the one of `Section | None`; None if there is no single one."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    if get_origin(annotation) in (Union, types.UnionType, typing.Annotated):
        sections = [inner for each in get_args(annotation) if (inner := _section(each)) is not None]
        return sections[0] if len(sections) == 1 else None
    return None


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
