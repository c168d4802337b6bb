"""Turns a data configuration of weaver and the file of a network into the files of a recipe."""

from __future__ import annotations

import ast
import pprint
import re
import textwrap
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from clew.core.config import Document, read_document, validate
from clew.errors import ConfigError
from clew.models.weaver.config import DataConfig

_LEFT_OUT = {
    "test_time_selection": "`clew evaluate` and `clew predict` use `selection` too",
    "monitor_variables": "name such columns as observers, and write them with `clew predict --with`",
    "bucketing": "a batch is drawn from all events",
}
"""Keys of weaver without a counterpart, and what to do instead."""


@dataclass(frozen=True)
class ConvertedRecipe:
    """The texts of the new files, and what is different from weaver.

    Args:
        recipe: The recipe, with `@name@` and `@Name@` for its names.
        network: The module of the network.
        differences: One line per key without a counterpart or with another meaning.
    """

    recipe: str
    network: str
    differences: tuple[str, ...]


def convert(data: Path, network: Path | None) -> ConvertedRecipe:
    """Convert a data configuration.

    Args:
        data: The YAML file.
        network: The Python file with `get_model`; None for a small network of clew's own.

    Raises:
        ConfigError: A file cannot be read, a key or an expression is not known, or there is no `get_model`.
    """
    document = read_document(data)
    left_out = {name: text for name, text in _LEFT_OUT.items() if document.data.get(name)}
    settings = {k: v for k, v in document.data.items() if k not in _LEFT_OUT and v is not None}
    for name in ("preprocess", "weights"):  # empty lines in weaver mean the default
        if isinstance(settings.get(name), dict):
            settings[name] = {k: v for k, v in settings[name].items() if v is not None}
    checked = validate(DataConfig, Document(settings, document.places, document.source))
    checked.needed_columns()
    checked.input_transform()
    differences = (*(f"{name}: {text}" for name, text in left_out.items()), *_differences(checked))
    text = _network_text(network)
    return ConvertedRecipe(_recipe_text(settings, data.name, network, differences), text, differences)


def _differences(data: DataConfig) -> list[str]:
    lines = []
    if data.weights is not None:
        lines.append("weights: they multiply the loss (mean 1); weaver draws events with this probability")
    if data.preprocess.method.lower().startswith("auto") and not data.preprocess.params:
        lines.append(
            "preprocess: auto measures the first events of every piece of a file, weaver those of the whole file"
        )
    return lines


def _network_text(network: Path | None) -> str:
    if network is None:
        return Path(__file__).with_name("network.py.template").read_text(encoding="utf-8")
    try:
        text = network.read_text(encoding="utf-8")
        tree = ast.parse(text)
    except OSError as error:
        raise ConfigError(f"cannot read {network}: {error.strerror}") from error
    except (SyntaxError, ValueError) as error:
        raise ConfigError(f"{network}: not a Python file ({error})") from error
    if not any(isinstance(node, ast.FunctionDef) and node.name == "get_model" for node in tree.body):
        raise ConfigError(f"{network}: no function get_model(data_config); name weaver's file of the network")
    imported = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    if any(name.partition(".")[0] == "weaver" for name in imported) and find_spec("weaver") is None:
        raise ConfigError(f"{network}: it imports weaver, which is not installed; pip install weaver-core")
    return text


def _recipe_text(settings: dict[str, Any], source: str, network: Path | None, differences: tuple[str, ...]) -> str:
    template = Path(__file__).with_name("recipe.py.template").read_text(encoding="utf-8")
    made_from = f"{source} and {network.name}" if network else source
    notes = "".join(textwrap.fill(f"- {line}", 118, subsequent_indent="  ") + "\n" for line in differences)
    literal = textwrap.indent(pprint.pformat(settings, width=100, sort_dicts=False), " " * 12).lstrip()
    text = template.replace("@source@", _in_docstring(made_from)).replace("@differences@", notes or "- nothing\n")
    return text.replace("@observers@", _with_option(settings)).replace("@settings@", literal)


def _with_option(settings: dict[str, Any]) -> str:
    observers = settings.get("observers") or ()
    return f" --with {_in_docstring(','.join(map(str, observers)))}" if observers else ""


def _in_docstring(text: str) -> str:
    """Return a text of a configuration without the characters that would end a docstring: what follows is code."""
    return re.sub(r"[^\w.,:/*+()\[\] -]", "_", text)
