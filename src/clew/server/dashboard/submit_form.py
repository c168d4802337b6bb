"""The submit form, made from the schema of a recipe's document: what may be set is said once, for files and people."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from clew import recipe as recipes
from clew import settings
from clew.core.config import Document, to_yaml, with_defaults
from clew.server.dashboard import docstrings

KINDS = {"train": ("train",), "tune": ("tune", "train"), "prepare": ("prepare",)}
"""Of jobs that a form can describe, and clew's sections that count for each."""
_LONG = 48
"""Characters beyond which a value gets more than one line."""


@dataclass
class Field:
    """One setting. Values are text, as a browser sends them; those of `number` and `text` are read as YAML."""

    key: str
    kind: Literal["choice", "flag", "number", "line", "text"]
    default: str
    help: str = ""
    options: list[str] = field(default_factory=list)
    nullable: bool = False
    value: str = ""
    wrong: str = ""

    @property
    def name(self) -> str:
        """The last part of its key."""
        return self.key.rpartition(".")[2]

    @property
    def changed(self) -> bool:
        """Whether it differs from the default."""
        return self.value != self.default

    @property
    def hint(self) -> str:
        """What stands in an empty box."""
        return "not set" if self.nullable else ""

    @property
    def rows(self) -> int:
        """Lines of its box, where it has several."""
        return min(12, max(self.value, self.default, key=len).count("\n") + 1)


@dataclass
class Part:
    """A section of settings."""

    name: str
    help: str
    fields: list[Field] = field(default_factory=list)
    sections: list[Part] = field(default_factory=list)

    def all(self) -> Iterator[Field]:
        """Its fields and those of the sections in it."""
        yield from self.fields
        for inner in self.sections:
            yield from inner.all()

    @property
    def changed(self) -> int:
        """How many of its settings differ from the defaults."""
        return sum(each.changed for each in self.all())

    @property
    def open(self) -> bool:
        """Whether it is shown unfolded at first."""
        return self.changed > 0 or any(each.wrong for each in self.all())


@dataclass
class Form:
    """What may be set of a recipe, as far as it counts for a kind of job."""

    recipe: str
    kind: str
    parts: list[Part]
    wrong: str = ""
    """What is amiss with settings together, or with none that has a field."""

    def fields(self) -> dict[str, Field]:
        """By key."""
        return {each.key: each for part in self.parts for each in part.all()}

    def fill(self, given: Mapping[str, str]) -> None:
        """Take over what a browser sent; keys that are no fields are left alone."""
        for key, each in self.fields().items():
            if key in given:
                each.value = given[key].replace("\r\n", "\n").strip()

    def fill_from(self, data: Mapping[str, Any]) -> None:
        """Take over a document, such as that of an earlier run."""
        for key, each in self.fields().items():
            found, there = _at(data, key)
            if there:
                each.value = _shown(found)

    def document(self) -> dict[str, Any]:
        """The recipe and what differs from the defaults; bad YAML in a field is told there."""
        found: dict[str, Any] = {"recipe": self.recipe}
        for key, each in self.fields().items():
            if each.changed:
                _put(found, key, self._read(each))
        return found

    def yaml(self) -> str:
        """The document as text."""
        return to_yaml(self.document())

    def check(self) -> dict[str, Any] | None:
        """The document, if it is right; else None, and fields tell what is wrong with them."""
        self.wrong = ""
        for each in self.fields().values():
            each.wrong = ""
        document = self.document()
        if not any(each.wrong for each in self.fields().values()):
            self._validate(document)
        wrong = bool(self.wrong) or any(each.wrong for each in self.fields().values())
        return None if wrong else document

    def _read(self, each: Field) -> Any:
        if each.value == "" and each.nullable:
            return None
        if each.kind == "line" or (each.kind == "choice" and each.value in each.options and _is_text(each.value)):
            return each.value
        try:
            return yaml.load(each.value, _Plain)
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            each.wrong = f"not valid YAML: {getattr(error, 'problem', error)}"
            return each.value

    def _validate(self, document: dict[str, Any]) -> None:
        found = recipes.find(self.recipe)
        full = with_defaults(Document(document), _defaults(self.recipe)).data
        try:
            settings.settings_schema(found).model_validate({**full, "recipe": self.recipe})
        except ValidationError as error:
            self.wrong = "; ".join(filter(None, (self._blame(detail) for detail in error.errors())))

    def _blame(self, detail: ErrorDetails) -> str:
        """Put a message at its field; the message itself where no field is to blame."""
        message = detail["msg"].removeprefix("Value error, ")
        key = ".".join(map(str, detail["loc"]))
        for name in sorted(self.fields(), key=len, reverse=True):
            if key == name or key.startswith(f"{name}."):
                self.fields()[name].wrong = message
                return ""
        return f"{key}: {message}" if key else message


class _Plain(yaml.SafeLoader):
    """Without aliases, by which a few lines say billions of values."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.MarkedYAMLError(problem="aliases are not read here")
        return super().compose_node(parent, index)


def make(recipe: str, kind: str) -> Form:
    """The form of a shipped recipe, every setting at its default.

    Raises:
        RecipeError: there is none of that name. Recipes from files are never loaded here.
    """
    model, defaults = _schema(recipe), _defaults(recipe)
    own = [name for name in model.model_fields if name != "recipe" and name not in settings.SECTIONS]
    wanted = [*KINDS[kind], *own] if kind != "prepare" else [*own, *KINDS[kind]]
    parts = [_part(model, name, defaults) for name in wanted]
    loose = [each for each in parts if isinstance(each, Field)]
    found = [each for each in parts if isinstance(each, Part)]
    return Form(recipe, kind, [*found, *([Part("other", "", loose)] if loose else [])])


def shipped() -> list[str]:
    """The recipes that come with clew."""
    return list(recipes.shipped())


@cache
def told(recipe: str) -> str:
    """A recipe in a line."""
    return (recipes.find(_known(recipe)).__doc__ or "").strip().partition("\n")[0]


def _known(recipe: str) -> str:
    from clew.errors import RecipeError, nearest

    if recipe not in recipes.shipped():
        raise RecipeError(f"no shipped recipe '{Path(recipe).name}'{nearest(recipe, recipes.shipped())}")
    return recipe


@cache
def _schema(recipe: str) -> type[BaseModel]:
    return settings.settings_schema(recipes.find(_known(recipe)))


@cache
def _defaults(recipe: str) -> dict[str, Any]:
    data = dict(settings.settings_from_document(Document({"recipe": _known(recipe)})).data)
    tune = _model(_schema(recipe).model_fields["tune"].annotation)
    assert tune is not None
    return {**data, "tune": data.get("tune") or tune().model_dump(mode="json")}


def _part(model: type[BaseModel], name: str, defaults: Mapping[str, Any], above: str = "") -> Field | Part:
    info, key = model.model_fields[name], f"{above}{name}"
    help_ = docstrings.of_fields(model).get(name, "")
    default = defaults.get(name)
    inner = _model(info.annotation)
    if inner is None or not isinstance(default, Mapping):
        return _field(key, info, default, help_)
    parts = [_part(inner, each, default, f"{key}.") for each in inner.model_fields]
    fields = [each for each in parts if isinstance(each, Field)]
    sections = [each for each in parts if isinstance(each, Part)]
    first_line = (help_ or _doc(inner)).partition("\n")[0]
    return Part(name, first_line, fields, sections)


def _doc(model: type[BaseModel]) -> str:
    """A class's own, not one it inherited."""
    return (vars(model).get("__doc__") or "").strip()


def _field(key: str, info: FieldInfo, default: Any, help_: str) -> Field:
    kinds = list(_choices(info.annotation))
    nullable = type(None) in kinds
    kinds = [each for each in kinds if each is not type(None)]
    options = [_shown(each) for kind in kinds if get_origin(kind) is Literal for each in get_args(kind)]
    only = all(get_origin(kind) is Literal for kind in kinds)
    shown = _shown(default)
    kind: Any
    if kinds == [bool]:
        kind = "flag"
    elif options and only:
        kind, options = "choice", [*([""] if nullable else []), *options]
    elif kinds == [str]:
        kind = "line"
    elif kinds and all(each in (int, float, str, bool) or get_origin(each) is Literal for each in kinds):
        kind = "number"
    else:
        kind = "text"
    if options and not only:
        help_ = f"{help_} Also: {', '.join(options)}." if help_ else f"A number, or {', '.join(options)}."
    return Field(key, kind, shown, help_, options, nullable, shown)


def _choices(annotation: Any) -> Iterator[Any]:
    """The plain kinds that an annotation allows."""
    origin = get_origin(annotation)
    if origin is typing.Annotated:
        yield from _choices(get_args(annotation)[0])
    elif origin in (Union, types.UnionType):
        for each in get_args(annotation):
            yield from _choices(each)
    else:
        yield annotation


def _model(annotation: Any) -> type[BaseModel] | None:
    found = [each for each in _choices(annotation) if isinstance(each, type) and issubclass(each, BaseModel)]
    return found[0] if len(found) == 1 else None


def _shown(value: Any) -> str:
    """A value as the text of a field; mappings a key a line."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    flow = yaml.safe_dump(value, default_flow_style=True, width=10_000, sort_keys=False).strip()
    if len(flow) <= _LONG or not isinstance(value, Mapping):
        return flow
    return yaml.safe_dump(value, default_flow_style=None, sort_keys=False).strip()


def _is_text(value: str) -> bool:
    return isinstance(yaml.safe_load(value), str)


def _at(data: Mapping[str, Any], key: str) -> tuple[Any, bool]:
    found: Any = data
    for part in key.split("."):
        if not isinstance(found, Mapping) or part not in found:
            return None, False
        found = found[part]
    return found, True


def _put(data: dict[str, Any], key: str, value: Any) -> None:
    *above, last = key.split(".")
    for part in above:
        data = data.setdefault(part, {})
    data[last] = value


def messages(fields: Iterable[Field]) -> dict[str, str]:
    """What is wrong, by key."""
    return {each.key: each.wrong for each in fields if each.wrong}
