"""One document for all settings: loading a saved document gives the same settings."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from clew import Recipe, Section, Table
from clew.core.config import Document, to_yaml
from clew.errors import ConfigError, RecipeError
from clew.recipes.tracking import Tracking
from clew.settings import load_settings, settings_from_document, settings_schema

MINE = """
    import clew

    class Config(clew.Section):
        width: int = 3

    class Mine(clew.Recipe):
        Config = Config
        defaults = {"train": {"epochs": 7, "optimizer": {"lr": 0.5}}}
        def prepare(self, events): return events
        def model(self): return None
"""


@pytest.fixture
def recipe_file(tmp_path: Path) -> Path:
    """A recipe in a file."""
    path = tmp_path / "mine.py"
    path.write_text(textwrap.dedent(MINE))
    return path


def yaml(folder: Path, text: str) -> str:
    path = folder / "my.yaml"
    path.write_text(textwrap.dedent(text).lstrip())
    return str(path)


def test_a_name_gives_every_setting_at_its_default() -> None:
    loaded = load_settings("tracking")
    assert isinstance(loaded.recipe, Tracking)
    assert next(iter(loaded.data)) == "recipe"
    assert {"prepare", "train", "segments", "model"} <= loaded.data.keys()
    assert loaded.data["model"]["hidden"] == loaded.recipe.config.model.hidden == 128


def test_a_recipe_has_defaults_for_the_sections_of_clew(recipe_file: Path) -> None:
    loaded = load_settings(str(recipe_file))
    assert (loaded.train.epochs, loaded.train.optimizer.lr) == (7, 0.5)
    assert loaded.train.optimizer.name == "adam"
    assert loaded.recipe.config.width == 3


def test_the_file_goes_over_the_recipe_and_an_override_over_the_file(tmp_path: Path, recipe_file: Path) -> None:
    path = yaml(tmp_path, "recipe: mine.py\nwidth: 4\ntrain: {epochs: 8, optimizer: {name: sgd}}")
    loaded = load_settings(path, ["width=5", "train.optimizer.weight_decay=0.5"])
    assert (loaded.recipe.config.width, loaded.train.epochs) == (5, 8)
    optimizer = loaded.train.optimizer
    assert (optimizer.name, optimizer.lr, optimizer.weight_decay) == ("sgd", 0.5, 0.5)


@pytest.mark.parametrize("settings", [[], ["model.hidden=4", "prepare.input=[a, b]", "train.clip=1"]], ids=len)
def test_what_is_shown_can_be_fed_back(tmp_path: Path, settings: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # relative paths belong to the folder of the file
    first = load_settings("tracking", settings)
    again = load_settings(yaml(tmp_path, to_yaml(first.data)))
    assert again.data == first.data
    assert (again.prepare, again.train, again.recipe.config) == (first.prepare, first.train, first.recipe.config)


def test_a_recipe_is_looked_up_from_the_file_that_names_it(
    tmp_path: Path, recipe_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    path = yaml(tmp_path, "recipe: ./mine.py")
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert load_settings("../my.yaml").data["recipe"] == load_settings(path).data["recipe"] == str(recipe_file)


def test_a_folder_with_settings_is_a_run(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("recipe: tracking\nmodel: {hidden: 9}")
    assert load_settings(str(tmp_path)).recipe.config.model.hidden == 9


def test_an_unknown_key_is_reported_with_its_line_and_the_nearest(tmp_path: Path) -> None:
    path = yaml(tmp_path, "recipe: tracking\nmodel:\n  hiden: 9\n")
    with pytest.raises(ConfigError, match=r"my\.yaml:3: unknown key 'model\.hiden'; did you mean 'model\.hidden'\?"):
        load_settings(path)


def test_a_wrong_value_is_reported_with_its_line(tmp_path: Path) -> None:
    path = yaml(tmp_path, "recipe: tracking\ntrain:\n  epochs: 3\n  batch_size: many\n")
    with pytest.raises(ConfigError, match=r"my\.yaml:4: train\.batch_size: .*whole number.*'many'"):
        load_settings(path)


@pytest.mark.parametrize("text", ["", "train: {epochs: 3}", "recipe: 5", "recipe: [tracking]"])
def test_a_document_must_name_its_recipe(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"my\.yaml: needs a line `recipe: NAME`"):
        load_settings(yaml(tmp_path, text))


def test_a_missing_document_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*none\.yaml: No such file"):
        load_settings(str(tmp_path / "none.yaml"))


def test_an_unknown_recipe_is_reported(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="no recipe 'traking'; did you mean 'tracking'"):
        load_settings("traking")
    with pytest.raises(RecipeError, match=r"no recipe file .*none\.py"):
        load_settings(yaml(tmp_path, "recipe: none.py"))


def test_settings_of_a_recipe_may_not_use_names_of_clew() -> None:
    class Greedy(Section):
        train: int = 3

    class Mine(Recipe):
        Config = Greedy

        def prepare(self, events: Table) -> Table:
            return events

    with pytest.raises(ConfigError, match="recipe Mine: its Config may not use clew's own name 'train'"):
        settings_schema(Mine)


def test_wrong_defaults_of_a_recipe_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "wrong.py"
    path.write_text(textwrap.dedent(MINE).replace('"epochs": 7', '"epoch": 7'))
    with pytest.raises(ConfigError, match=r"unknown key 'train\.epoch'; did you mean 'train\.epochs'\?"):
        load_settings(str(path))


def test_settings_without_a_file_have_a_source() -> None:
    with pytest.raises(ConfigError, match="the settings: needs a line `recipe: NAME`"):
        settings_from_document(Document())
