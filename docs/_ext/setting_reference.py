"""The page of settings: key, type, default and meaning, from the config classes."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Any

from markdown_text import code, escaped, table

from clew.core.config import Section
from clew.core.setting_text import setting_texts
from clew.data.prepare.config import PrepareConfig
from clew.jobs.sites import Site
from clew.server.config import ServiceConfig
from clew.training.config import TrainConfig
from clew.tuning.config import TuneConfig

COMMON = (
    ("prepare", "prepare.", PrepareConfig, "How raw events become a dataset. Used by `clew prepare`."),
    ("train", "train.", TrainConfig, "How a model is trained. Used by `clew train`, and by every trial of a study."),
    ("tune", "tune.", TuneConfig, "A study. Used by `clew tune run`; a document without a study has no such section."),
)
ELSEWHERE = (
    ("The server", ServiceConfig, "The YAML file of `clew serve --config`."),
    ("Sites", Site, "The profile of a cluster: `clew site add`, and `--on SITE`."),
)


def settings_markdown() -> str:
    """Return all settings as Markdown: those of every recipe, then the server's and those of sites."""
    parts = [part for name, prefix, kind, text in COMMON for part in (f"## {name}", text, _entries(kind, prefix))]
    parts += [
        "## Settings of shipped recipes",
        "These are on the top level of a document, next to `prepare` and `train`.",
    ]
    for point in sorted(entry_points(group="clew.recipes")):
        if point.value.startswith("clew."):
            parts += _recipe(point.name, point.load())
    for title, kind, text in ELSEWHERE:
        parts += [f"## {title}", text, _entries(kind, "", index=False)]
    return "\n\n".join(parts)


def _recipe(name: str, recipe: Any) -> Iterator[str]:
    yield f"### {name}"
    yield _entries(recipe.Config, "", index=False)
    changed = [[code(key), code(str(value))] for key, value in _flat(dict(recipe.defaults))]
    if changed:
        yield f"`{name}` has other defaults for these settings:"
        yield table(["key", "default"], changed)


def _entries(kind: type[Section], prefix: str, index: bool = True) -> str:
    """Return one entry per setting. Those of recipes are not in the index: several recipes have the same keys."""
    entries = []
    for each in setting_texts(kind, None, prefix):
        options = [f":type: {code(each.type.replace('|', ' | '))}", f":default: {code(each.value)}"]
        options += [] if index else [":no-index:"]
        entries.append("\n".join([f"```{{confval}} {each.key}", *options, "", escaped(each.meaning), "```"]))
    return "\n\n".join(entries)


def _flat(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
