"""The pages of the reference that are made from the code are complete, and every setting has a meaning."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

import clew
from clew.cli.main import command
from clew.core.setting_text import setting_texts
from clew.data.prepare.config import PrepareConfig
from clew.jobs.sites import Site
from clew.server.api.route_list import route_list
from clew.server.config import ServiceConfig
from clew.training.config import TrainConfig
from clew.tuning.config import TuneConfig

EXTENSIONS = Path(__file__).parents[1] / "docs" / "_ext"
CONFIGS = [PrepareConfig, TrainConfig, TuneConfig, ServiceConfig, Site]
RECIPES = sorted(point.name for point in entry_points(group="clew.recipes") if point.value.startswith("clew."))


@pytest.fixture(autouse=True)
def _extensions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(EXTENSIONS), *sys.path])


def reference(subject: str) -> str:
    return str(importlib.import_module("generated_reference").reference(subject))


def _leaves(each: Any, name: str) -> Iterator[tuple[str, Any]]:
    if hasattr(each, "commands"):
        for verb in each.commands:
            yield from _leaves(each.commands[verb], f"{name} {verb}")
    else:
        yield name, each


def test_the_page_of_commands_has_every_option_of_every_command() -> None:
    text = reference("commands") + "\n#"
    for name, each in _leaves(command(), "clew"):
        section = text.partition(f"# {name}\n")[2].partition("\n#")[0]
        options = [option for one in each.params if not getattr(one, "hidden", False) for option in one.opts]
        assert section and all(f"`{option}`" in section for option in options if option.startswith("--")), name


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.__name__)
def test_every_setting_has_a_meaning(config: type[clew.Section]) -> None:
    assert [each.key for each in setting_texts(config, None) if not each.meaning] == []


@pytest.mark.parametrize("name", RECIPES)
def test_every_setting_of_a_recipe_has_a_meaning(name: str) -> None:
    (recipe,) = (point.load() for point in entry_points(group="clew.recipes", name=name))
    assert [each.key for each in setting_texts(recipe.Config, None) if not each.meaning] == []


def test_the_page_of_settings_has_every_setting() -> None:
    text = reference("settings")
    for config, prefix in ((PrepareConfig, "prepare."), (TrainConfig, "train."), (TuneConfig, "tune.")):
        assert all(f"{{confval}} {each.key}\n" in text for each in setting_texts(config, None, prefix))
    assert all(f"### {name}\n" in text for name in RECIPES)


def test_the_page_of_python_has_every_public_name() -> None:
    assert importlib.import_module("python_reference").shown_names() == set(clew.__all__)


def test_the_page_of_the_rest_interface_has_every_route() -> None:
    text = reference("rest")
    for route in route_list():
        assert f"### {route.method} {route.path.replace(':path}', '}')}\n" in text


def test_text_is_escaped_and_code_is_not() -> None:
    markdown = importlib.import_module("markdown_text")
    assert markdown.escaped("a_b <int> `c_d*`") == "a\\_b \\<int\\> `c_d*`"
    assert markdown.table(["a"], [["x|y"]]).splitlines()[-1] == "| x\\|y |"


def test_indented_blocks_of_docstrings_become_code() -> None:
    lines = ["Do this:", "", "    clew.train()", "", "Then `x`.", "", "Args:", "    a: b"]
    shown = importlib.import_module("docstrings").as_rst(lines)
    assert (
        shown[2:5] == ["::", "", "    clew.train()"] and "Then ``x``." in shown and shown[-2:] == ["Args:", "    a: b"]
    )
