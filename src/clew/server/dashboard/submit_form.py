"""The submit form, made from the schema of a recipe's settings, so that files and forms accept the same."""

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
from clew.core.validation_text import validation_text
from clew.server.dashboard import docstrings

KINDS = {"train": ("train",), "tune": ("tune", "train"), "prepare": ("prepare",)}
"""Kinds of jobs that have a form, and the sections of settings that apply to each."""
OWN = "own"
"""Stands for a recipe or script of the user, whose code the server stores and never loads."""
_OWN_SETTINGS = "settings"
"""The key of the field with the settings of an own recipe."""
_LINE_LENGTH = 48
"""Characters above which a value has several lines."""


@dataclass
class FormField:
    """One setting. Values are text, as a browser sends them; `number` and `text` are parsed as YAML."""

    key: str
    kind: Literal["choice", "flag", "number", "line", "text"]
    default: str
    help: str = ""
    options: list[str] = field(default_factory=list)
    nullable: bool = False
    value: str = ""
    error: str = ""

    @property
    def name(self) -> str:
        """The last part of the key."""
        return self.key.rpartition(".")[2]

    @property
    def changed(self) -> bool:
        """Whether the value differs from the default."""
        return self.value != self.default

    @property
    def hint(self) -> str:
        """The text in an empty field."""
        return "not set" if self.nullable else ""

    @property
    def rows(self) -> int:
        """The number of lines of the field."""
        return min(12, max(self.value, self.default, key=len).count("\n") + 1)


@dataclass
class FormSection:
    """A section of settings."""

    name: str
    help: str
    fields: list[FormField] = field(default_factory=list)
    sections: list[FormSection] = field(default_factory=list)

    def all(self) -> Iterator[FormField]:
        """Yield the fields of the section and of its inner sections."""
        yield from self.fields
        for inner in self.sections:
            yield from inner.all()

    @property
    def changed(self) -> int:
        """The number of settings that differ from the defaults."""
        return sum(field.changed for field in self.all())

    @property
    def open(self) -> bool:
        """Whether the section is open at first."""
        return self.changed > 0 or any(field.error for field in self.all())


@dataclass
class SubmitForm:
    """The settings of a recipe that apply to one kind of job."""

    recipe: str
    kind: str
    sections: list[FormSection]
    error: str = ""
    """An error of several settings together, or of a setting without a field."""
    recipe_file: str = ""
    """The file of an own recipe."""
    settings: BaseModel | None = None
    """All settings, after a check without errors."""

    def fields(self) -> dict[str, FormField]:
        """Return the fields by key."""
        return {each.key: each for section in self.sections for each in section.all()}

    @property
    def epochs(self) -> int:
        """The number of epochs; 1 where the field does not hold a number."""
        text = self.fields()["train.epochs"].value
        return int(text) if text.isdecimal() else 1

    def fill(self, values: Mapping[str, str]) -> None:
        """Set the fields from the values of a browser; other keys are ignored."""
        for key, each in self.fields().items():
            if key in values:
                each.value = values[key].replace("\r\n", "\n").strip()

    def fill_from(self, data: Mapping[str, Any]) -> None:
        """Set the fields from settings, such as those of an earlier run."""
        for key, each in self.fields().items():
            value, present = _value_at(data, key)
            if present:
                each.value = _field_text(value)

    def document(self) -> dict[str, Any]:
        """Return the recipe and the settings that differ from the defaults.

        Invalid YAML becomes an error of its field.
        """
        document: dict[str, Any] = {"recipe": self.recipe_file or self.recipe} if self.kind != "script" else {}
        for key, each in self.fields().items():
            if key == _OWN_SETTINGS and each.value:
                document |= self._own_settings(each)
            elif each.changed:
                _set_at(document, key, self._parse(each))
        return document

    def _own_settings(self, each: FormField) -> dict[str, Any]:
        """The settings of an own recipe, which only the job can check."""
        value = self._parse(each)
        if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
            each.error = each.error or "a name and a value per line, as `model: {hidden: 64}`"
        elif {"recipe", *settings.SECTIONS} & value.keys():
            each.error = "only settings of the recipe; those of clew have fields of their own"
        return value if not each.error else {}

    def yaml(self) -> str:
        """Return the document as YAML."""
        return to_yaml(self.document())

    def check(self) -> dict[str, Any] | None:
        """Check all settings.

        Returns:
            The document; None if there are errors, which the fields and the form then have.
        """
        self.error, self.settings = "", None
        for each in self.fields().values():
            each.error = ""
        document = self.document()
        if not field_errors(self.fields().values()):
            self._validate(document)
        return None if self.error or field_errors(self.fields().values()) else document

    def _parse(self, each: FormField) -> Any:
        if each.value == "" and each.nullable:
            return None
        if each.kind == "line" or (each.kind == "choice" and each.value in each.options and _is_text(each.value)):
            return each.value
        try:
            return yaml.load(each.value, _WithoutAliases)
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            each.error = f"not valid YAML: {getattr(error, 'problem', error)}"
            return each.value

    def _validate(self, document: dict[str, Any]) -> None:
        if self.kind == "script":
            return
        schema = _schema(self.recipe)
        known = {name: value for name, value in document.items() if self.recipe != OWN or name in schema.model_fields}
        full = with_defaults(Document(known), _defaults(self.recipe)).data
        try:
            self.settings = schema.model_validate({**full, "recipe": self.recipe})
        except ValidationError as error:
            self.error = "; ".join(filter(None, (self._assign_error(detail) for detail in error.errors())))

    def _assign_error(self, detail: ErrorDetails) -> str:
        """Set the error of the field it belongs to; return the message if there is no such field."""
        message = validation_text(detail)
        key = ".".join(map(str, detail["loc"]))
        for name in sorted(self.fields(), key=len, reverse=True):
            if key == name or key.startswith(f"{name}."):
                self.fields()[name].error = message
                return ""
        return f"{key}: {message}" if key else message


class _WithoutAliases(yaml.SafeLoader):
    """A YAML loader without aliases: with them, a few lines can describe billions of values."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.MarkedYAMLError(problem="aliases are not allowed here")
        return super().compose_node(parent, index)


def make_form(recipe: str, kind: str) -> SubmitForm:
    """Return the form of a recipe, with all settings at their defaults.

    Args:
        recipe: The name of a recipe that is part of clew, or `OWN`. Recipes in files are never loaded here.
        kind: A key of `KINDS`, or `script`.

    Raises:
        RecipeError: there is no such recipe.
    """
    if kind == "script":
        return SubmitForm(OWN, kind, [])
    model, defaults = _schema(recipe), _defaults(recipe)
    recipe_sections = [name for name in model.model_fields if name != "recipe" and name not in settings.SECTIONS]
    names = [*KINDS[kind], *recipe_sections] if kind != "prepare" else [*recipe_sections, *KINDS[kind]]
    parts = [_form_part(model, name, defaults) for name in names]
    fields = [part for part in parts if isinstance(part, FormField)]
    sections = [part for part in parts if isinstance(part, FormSection)]
    if recipe == OWN:
        help_ = "As YAML: `model: {hidden: 64}`. The job checks them."
        settings_field = FormField(_OWN_SETTINGS, "text", "", help_, nullable=True)
        sections.append(FormSection("recipe", "Settings of your recipe.", [settings_field]))
    return SubmitForm(recipe, kind, [*sections, *([FormSection("other", "", fields)] if fields else [])])


def shipped() -> list[str]:
    """Return the recipes that are part of clew."""
    return list(recipes.shipped())


@cache
def recipe_summary(recipe: str) -> str:
    """Return the one-line description of a recipe."""
    if recipe == OWN:
        return "Your own files: the file of the recipe or script, and the modules that it imports."
    return (recipes.find(_checked(recipe)).__doc__ or "").strip().partition("\n")[0]


def _checked(recipe: str) -> str:
    from clew.errors import RecipeError, nearest

    if recipe not in recipes.shipped():
        raise RecipeError(f"no shipped recipe '{Path(recipe).name}'{nearest(recipe, recipes.shipped())}")
    return recipe


@cache
def _schema(recipe: str) -> type[BaseModel]:
    kind = recipes.Recipe if recipe == OWN else recipes.find(_checked(recipe))
    return settings.settings_schema(kind)


@cache
def _defaults(recipe: str) -> dict[str, Any]:
    if recipe == OWN:
        data = _schema(OWN).model_validate({"recipe": ""}).model_dump(mode="json")
    else:
        data = dict(settings.settings_from_document(Document({"recipe": _checked(recipe)})).data)
    tune = _model(_schema(recipe).model_fields["tune"].annotation)
    assert tune is not None
    return {**data, "tune": data.get("tune") or tune().model_dump(mode="json")}


def _form_part(
    model: type[BaseModel], name: str, defaults: Mapping[str, Any], prefix: str = ""
) -> FormField | FormSection:
    info, key = model.model_fields[name], f"{prefix}{name}"
    help_ = docstrings.field_docs(model).get(name, "")
    default = defaults.get(name)
    inner = _model(info.annotation)
    if inner is None or not isinstance(default, Mapping):
        return _field(key, info, default, help_)
    parts = [_form_part(inner, each, default, f"{key}.") for each in inner.model_fields]
    fields = [each for each in parts if isinstance(each, FormField)]
    sections = [each for each in parts if isinstance(each, FormSection)]
    first_line = (help_ or _own_docstring(inner)).partition("\n")[0]
    return FormSection(name, first_line, fields, sections)


def _own_docstring(model: type[BaseModel]) -> str:
    """Return the docstring of a class, not an inherited one."""
    return (vars(model).get("__doc__") or "").strip()


def _field(key: str, info: FieldInfo, default: Any, help_: str) -> FormField:
    kinds = list(_choices(info.annotation))
    nullable = type(None) in kinds
    kinds = [each for each in kinds if each is not type(None)]
    options = [_field_text(each) for kind in kinds if get_origin(kind) is Literal for each in get_args(kind)]
    only = all(get_origin(kind) is Literal for kind in kinds)
    text = _field_text(default)
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
    return FormField(key, kind, text, help_, options, nullable, text)


def _choices(annotation: Any) -> Iterator[Any]:
    """Yield the types that an annotation allows, without Annotated and Union."""
    origin = get_origin(annotation)
    if origin is typing.Annotated:
        yield from _choices(get_args(annotation)[0])
    elif origin in (Union, types.UnionType):
        for each in get_args(annotation):
            yield from _choices(each)
    else:
        yield annotation


def _model(annotation: Any) -> type[BaseModel] | None:
    models = [each for each in _choices(annotation) if isinstance(each, type) and issubclass(each, BaseModel)]
    return models[0] if len(models) == 1 else None


def _field_text(value: Any) -> str:
    """Return a value as the text of a field; a long mapping has one line per key."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    flow = yaml.safe_dump(value, default_flow_style=True, width=10_000, sort_keys=False).strip()
    if len(flow) <= _LINE_LENGTH or not isinstance(value, Mapping):
        return flow
    return yaml.safe_dump(value, default_flow_style=None, sort_keys=False).strip()


def _is_text(value: str) -> bool:
    return isinstance(yaml.safe_load(value), str)


def _value_at(data: Mapping[str, Any], key: str) -> tuple[Any, bool]:
    value: Any = data
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return None, False
        value = value[part]
    return value, True


def _set_at(data: dict[str, Any], key: str, value: Any) -> None:
    *sections, last = key.split(".")
    for part in sections:
        data = data.setdefault(part, {})
    data[last] = value


def field_errors(fields: Iterable[FormField]) -> dict[str, str]:
    """Return the errors of fields by key."""
    return {each.key: each.error for each in fields if each.error}
