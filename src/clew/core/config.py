"""Settings: read a YAML file, apply `--set a.b=c`, and check the result against a schema that rejects unknown keys."""

from __future__ import annotations

import difflib
import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from clew.core.validation_text import validation_text
from clew.errors import ConfigError, list_names, nearest

Key = tuple[str | int, ...]
_SYNONYMS = {"learning_rate": "lr", "max_epochs": "epochs", "num_workers": "workers"}
"""Names of settings in other programs, and what they are called here."""
S = TypeVar("S", bound="Section")
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The C implementations of YAML are used if they are installed: the settings of every trial of a study are read and
written."""


_MAX_DEPTH = 100
_MAX_NODES = 1_000_000


class OptionSetting(str):
    """A setting `a.b=c` that an option of the command line sets. Messages name the option.

    Args:
        text: The setting.
        option: The option with its value, for example `--workers 2`.
    """

    option: str

    def __new__(cls, text: str, option: str) -> OptionSetting:
        setting = super().__new__(cls, text)
        setting.option = option
        return setting


class Section(BaseModel):
    """Base class of every config class. Unknown keys are rejected. Values are checked when the object is built, and
    cannot
    be changed afterwards.

    Example:
        >>> class OptimizerConfig(Section):
        ...     lr: float = 0.001
        >>> OptimizerConfig(lr="0.01").lr
        0.01
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, protected_namespaces=(), allow_inf_nan=False
    )


@dataclass(frozen=True)
class Document:
    """Settings before they are checked: the data, and the place (file and line) of every key."""

    data: dict[str, Any] = field(default_factory=dict)
    places: Mapping[tuple[str, ...], str] = field(default_factory=dict)
    source: str = "the settings"

    def place(self, key: Key) -> str:
        """Return the place of a key: `file:line` or `--set ...`.

        Args:
            key: The parts of the key. If the key itself was not set, the place of the nearest key above it is returned.
        """
        path = tuple(map(str, key))
        while path and path not in self.places:
            path = path[:-1]
        return self.places.get(path, self.source)


def read_document(path: Path) -> Document:
    """Parse a YAML file. The line of every key is stored for later messages.

    Raises:
        ConfigError: the file is missing, is not valid YAML, or is not a mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
        _check_values(text)
        loader = _LOADER(text)
        node = loader.get_single_node()
        _check_once(node, path)
        data = None if node is None else loader.construct_document(node)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise ConfigError(f"{path}{line}: not valid YAML: {getattr(error, 'problem', error)}") from error
    if data is None:
        return Document(source=str(path))
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: expected settings as 'key: value' lines, found a {type(data).__name__}")
    places = {key: f"{path}:{line}" for key, line in _lines(node, ())}
    return Document(data, places, str(path))


def with_overrides(document: Document, settings: Sequence[str]) -> Document:
    """Return the document with settings of the form `a.b=c` applied. Values are parsed as YAML; the schema sets their
    types later.

    Raises:
        ConfigError: a setting has another form, or its key does not fit the document.
    """
    data, places = _copy(document.data), dict(document.places)
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"--set {setting}: expected KEY=VALUE, for example --set train.epochs=5")
        key = tuple(name.strip().split("."))
        try:
            _check_values(text)
            value = yaml.safe_load(text)
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise ConfigError(f"--set {setting}: the value is not valid YAML") from error
        place = setting.option if isinstance(setting, OptionSetting) else f"--set {setting}"
        _put(data, key, value, place)
        places = {existing: place for existing, place in places.items() if existing[: len(key)] != key}
        places[key] = place
    return Document(data, places, document.source)


def with_values(document: Document, values: Mapping[str, Any], source: str) -> Document:
    """Return the document with new values.

    Args:
        document: The settings.
        values: Values by dotted key, such as `train.optimizer.lr`.
        source: Where the values come from, for later messages.
    """
    data, places = _copy(document.data), dict(document.places)
    for name, value in values.items():
        key = tuple(name.split("."))
        _put(data, key, value, name)
        places[key] = source
    return Document(data, places, document.source)


def with_defaults(document: Document, defaults: Mapping[str, Any]) -> Document:
    """Return the document with default values below it. Mappings are merged key by key. Any other value in the document
    replaces the default."""
    return Document(_merge(defaults, document.data), document.places, document.source)


def validate(model: type[S], document: Document, explicit: Mapping[str, Any] | None = None) -> S:
    """Check a document against a schema.

    Args:
        model: The schema.
        document: The settings, possibly with defaults.
        explicit: The settings without defaults. Validators of the schema get them as `info.context["explicit"]`, if a
            default depends on another setting and must not replace a value that was set.

    Returns:
        The settings as an object of the schema.

    Raises:
        ConfigError: one line with the place, the key and the problem, and for an unknown key the nearest name.
    """
    try:
        return model.model_validate(document.data, context=None if explicit is None else {"explicit": explicit})
    except ValidationError as error:
        lines = [_explain(model, document, detail) for detail in error.errors()]
        raise ConfigError("; ".join(lines)) from None


def to_data(section: Section) -> dict[str, Any]:
    """Return a section as plain YAML types. `validate` accepts them unchanged."""
    return section.model_dump(mode="json")


def to_yaml(data: Mapping[str, Any]) -> str:
    """Return settings as YAML text, with the keys in their declared order."""
    return str(yaml.dump(dict(data), Dumper=_DUMPER, sort_keys=False, allow_unicode=True, width=100))


def _check_values(text: str) -> None:
    """Raise an error for zero bytes, and for deeply nested YAML: the parser calls itself, and would end the process."""
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if "\0" in getattr(event, "value", ""):
            raise ValueError("a zero byte")
        if depth > _MAX_DEPTH:
            raise ValueError(f"nested more than {_MAX_DEPTH} deep")


def _check_once(node: yaml.Node | None, path: Path, visits: Iterator[int] | None = None) -> None:
    """Raise an error for a key that is set twice: YAML would silently use the last value.

    Parts that are repeated by `*name` count each time: a few lines can stand for any number of values.
    """
    visits = visits or iter(range(_MAX_NODES))
    if next(visits, None) is None:
        raise ValueError(f"more than {_MAX_NODES:,} values")
    children = node.value if isinstance(node, (yaml.MappingNode, yaml.SequenceNode)) else []
    first_lines: dict[str, int] = {}
    for child in children:
        if isinstance(node, yaml.MappingNode):
            name, child = child
            line, first = name.start_mark.line + 1, first_lines.get(name.value)
            if first is not None:
                raise ConfigError(f"{path}:{line}: '{name.value}' is set twice, first in line {first}")
            first_lines[name.value] = line
        _check_once(child, path, visits)


def _lines(node: yaml.Node | None, key: tuple[str, ...]) -> Iterable[tuple[tuple[str, ...], int]]:
    if isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            yield (*key, str(name.value)), name.start_mark.line + 1
            yield from _lines(value, (*key, str(name.value)))
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield (*key, str(index)), value.start_mark.line + 1
            yield from _lines(value, (*key, str(index)))


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _copy(inner) for name, inner in value.items()}
    return [_copy(inner) for inner in value] if isinstance(value, list) else value


def _merge(below: Any, above: Any) -> Any:
    if not (isinstance(below, Mapping) and isinstance(above, Mapping)):
        return _copy(above)
    merged = {name: _copy(value) for name, value in below.items()}
    for name, value in above.items():
        merged[name] = _merge(below[name], value) if name in below else _copy(value)
    return merged


def _put(data: Any, key: tuple[str, ...], value: Any, setting: str) -> None:
    for index, name in enumerate(key):
        part: str | int = name
        if isinstance(data, list):
            if not name.isdecimal() or int(name) >= len(data):
                parent = ".".join(key[:index])
                raise ConfigError(f"{setting}: {parent} has {len(data)} entries, counted from 0")
            part = int(name)
        elif isinstance(data, dict):
            part = next((existing for existing in data if str(existing) == name), name)  # 0 in YAML is no text
        else:
            parent = ".".join(key[:index])
            raise ConfigError(f"{setting}: {parent} is a single value, it has no key '{name}'")
        if index == len(key) - 1:
            data[part] = value
        elif isinstance(data, dict) and data.get(part) is None:
            data[part] = {}
        data = data[part]


_MESSAGES = {
    "missing": "is required",
    **dict.fromkeys(("tuple_type", "list_type"), "must be a list, such as [1, 2]"),
    "dict_type": "must be a mapping, such as {key: value}",
}
"""Messages in words of YAML, by the type of the error."""


def _explain(model: type[BaseModel], document: Document, detail: ErrorDetails) -> str:
    key = _user_key(document.data, detail["loc"])
    name = ".".join(map(str, key)) or "the settings"
    if detail["type"] == "extra_forbidden":
        siblings = _names(model, detail["loc"][:-1])
        place = next((document.places[path] for path in document.places if _starts_with(path, key)), "")
        return f"{place or document.place(key)}: unknown key '{name}'{_suggestion(model, key, siblings)}"
    message = validation_text(detail)
    message = _MESSAGES.get(detail["type"], message)
    value = detail["input"]
    shown = f" (given: {value!r})" if isinstance(value, (str, int, float, bool)) or value is None else ""
    return f"{_place_of_problem(document, key, message)}: {name}: {message[:1].lower()}{message[1:]}{shown}"


def _starts_with(path: tuple[str, ...], key: Key) -> bool:
    return path[: len(key)] == tuple(map(str, key))


def _place_of_problem(document: Document, key: Key, message: str) -> str:
    """Return the place of a problem. If a whole section has it, that is the place of the first key that the message
    names."""
    inner = [path for path in document.places if _starts_with(path, key) and len(path) > len(key)]
    named = {path: match.start() for path in inner if (match := re.search(rf"\b{re.escape(path[-1])}\b", message))}
    return document.places[min(named, key=lambda path: named[path])] if named else document.place(key)


def _suggestion(model: type[BaseModel], key: Key, siblings: Iterable[str]) -> str:
    """Return the end of a message about an unknown key: the full key that was probably meant, or those allowed there.

    A key of the same name in another section comes first, then a similar name in this section, then a similar name
    anywhere.
    """
    name, parent = _SYNONYMS.get(str(key[-1]), str(key[-1])), ".".join(map(str, key[:-1]))
    keys = sorted(_all_keys(model, ()), key=len)
    same = [path for path in keys if path[-1] == name]
    if same:
        return f"; did you mean '{'.'.join(same[0])}'?"
    prefix = f"{parent}." if parent else ""
    if difflib.get_close_matches(name, siblings := list(siblings)):
        return nearest(f"{prefix}{name}", [f"{prefix}{each}" for each in siblings])
    similar = difflib.get_close_matches(name, {path[-1] for path in keys}, n=1, cutoff=0.75)
    if similar:
        return f"; did you mean '{'.'.join(next(path for path in keys if path[-1] == similar[0]))}'?"
    return f"; choose from {list_names(sorted(f'{prefix}{each}' for each in siblings), name)}" if siblings else ""


def _all_keys(annotation: Any, parent: tuple[str, ...]) -> Iterable[tuple[str, ...]]:
    """Return the keys of a schema and of its sections, except those inside lists and mappings."""
    if get_origin(annotation) in (typing.Annotated, Union, types.UnionType):
        for choice in get_args(annotation):
            yield from _all_keys(choice, parent)
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        for name, field_info in annotation.model_fields.items():
            yield (*parent, name)
            yield from _all_keys(field_info.annotation, (*parent, name))


def _user_key(data: Any, loc: Key) -> Key:
    """Return the part of a pydantic location that the user wrote: tags and types of unions are left out."""
    key: list[str | int] = []
    for index, part in enumerate(loc):
        inside = isinstance(data, dict) and part in data
        within = isinstance(data, list) and isinstance(part, int) and part < len(data)
        if inside or within:
            data = data[part]
        elif index < len(loc) - 1 or part == "[key]" or not isinstance(data, (dict, list)):
            continue
        key.append(part)
    return tuple(key)


def _names(annotation: Any, loc: Key) -> set[str]:
    """Return the keys that a schema allows at a location."""
    origin = get_origin(annotation)
    if origin is typing.Annotated:
        return _names(get_args(annotation)[0], loc)
    if origin in (Union, types.UnionType):
        return set().union(*(_names(choice, loc) for choice in get_args(annotation)))
    if origin in (list, tuple, dict) and loc:
        return _names(get_args(annotation)[-1 if origin is dict else 0], loc[1:])
    if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        return set()
    if not loc:
        return set(annotation.model_fields)
    field_info = annotation.model_fields.get(str(loc[0]))
    if field_info is None:
        kind = annotation.model_fields.get("kind")
        return _names(annotation, loc[1:]) if kind is not None and kind.default == loc[0] else set()
    return _names(field_info.annotation, loc[1:])


def parse_seconds(text: str, option: str) -> float:
    """Return the seconds of a duration such as `90s`, `30m`, `12h`, `7d` or `2w`.

    Args:
        text: The duration.
        option: Name of the option, for the message of an error.

    Raises:
        ConfigError: the text is not a duration.
    """
    return _quantity(text, {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}, option, "90s, 30m, 12h or 2w")


def parse_bytes(text: str, option: str) -> float:
    """Return the bytes of a size such as `500M` or `20G`. The units are powers of 1000.

    Args:
        text: The size.
        option: Name of the option, for the message of an error.

    Raises:
        ConfigError: the text is not a size.
    """
    return _quantity(text, {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}, option, "500M or 20G")


def _quantity(text: str, units: Mapping[str, float], option: str, example: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]?)B?", text.strip())
    if not match or match[2] not in units:
        raise ConfigError(f"{option} {text}: expected a number and a unit, as {example}")
    return float(match[1]) * units[match[2]]
