"""Code counts by what it does, settings by what is used."""

from __future__ import annotations

import itertools
import textwrap
from pathlib import Path

import pytest

from clew.data.prepare.content_keys import differences, key_of, stage_parts
from clew.data.readers.parquet import ParquetReader
from clew.data.transforms import MinMax
from clew.recipe import find

_number = itertools.count()

RECIPE = '''
"""A recipe."""
from clew import Recipe, Section, Table
import helper_@

LIMIT = 3
TABLE = {"a": helper_@.used}

class Config(Section):
    cut: float = 1.0
    other: float = 1.0
    whole: float = 1.0

def apply(events, cut):
    # a remark
    return events

def unused():
    return 1

class Mine(Recipe):
    Config = Config

    def prepare(self, events: Table) -> Table:
        """Says what it does."""
        return self.work(apply(events, self.config.cut + LIMIT))

    def work(self, events):
        return helper_@.used(events)

    def model(self):
        return None
'''
HELPER = """
def used(events):
    return events

def never():
    return 2
"""


def _parts(folder: Path, recipe: str = RECIPE, helper: str = HELPER) -> dict[str, object]:
    """The parts of the key of the prepare stage, for a recipe written to a new folder."""
    number = next(_number)
    place = folder / str(number)
    place.mkdir()
    (place / f"helper_{number}.py").write_text(textwrap.dedent(helper))
    (place / "mine.py").write_text(recipe.replace("@", str(number)))
    kind = find(str(place / "mine.py"))
    parts = stage_parts(kind(), ())["prepare"]
    code = {name.rpartition(":")[2]: digest for name, digest in parts["code"].items()}
    return {**parts, "code": code}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("# a remark", "# another remark, and longer"),
        ('"""Says what it does."""', '"""Says it in other words."""'),
        ("return events\n\ndef unused", "return (\n        events\n    )\n\ndef unused"),
        ("return 1", "return 11"),
        ("other: float = 1.0", "other: float = 2.0"),
    ],
)
def test_irrelevant_changes_do_not_count(tmp_path: Path, old: str, new: str) -> None:
    assert old in RECIPE
    assert _without_helper(_parts(tmp_path)) == _without_helper(_parts(tmp_path, RECIPE.replace(old, new)))


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("self.config.cut + LIMIT", "self.config.cut - LIMIT", "Mine.prepare"),
        ("LIMIT = 3", "LIMIT = 4", "Mine.prepare"),
        ("    # a remark", "    events = events", "apply"),
        ("return helper_@.used(events)", "return events", "Mine.work"),
    ],
)
def test_logic_constants_and_called_methods_count(tmp_path: Path, old: str, new: str, named: str) -> None:
    before, after = _parts(tmp_path), _parts(tmp_path, RECIPE.replace(old, new))
    changed = [line for line in differences(before, after) if named in line]
    assert changed == [f"code of {named} changed"]


def test_a_function_of_a_module_in_the_folder_of_the_recipe_counts(tmp_path: Path) -> None:
    before, after = _parts(tmp_path), _parts(tmp_path, helper=HELPER.replace("return events", "return events[:1]"))
    assert before["code"]["used"] != after["code"]["used"]  # type: ignore[index]
    assert "never" not in before["code"]  # type: ignore[operator]


def test_only_the_settings_that_are_used_count(tmp_path: Path) -> None:
    assert _parts(tmp_path)["settings"] == {"cut": 1.0}


def test_a_config_used_as_a_whole_counts_as_a_whole(tmp_path: Path) -> None:
    handed_on = RECIPE.replace("self.config.cut + LIMIT", "self.config")
    assert _parts(tmp_path, handed_on)["settings"] == {"cut": 1.0, "other": 1.0, "whole": 1.0}


def test_the_declared_version_counts(tmp_path: Path) -> None:
    newer = RECIPE.replace("    Config = Config\n", '    Config = Config\n    version = "2"\n')
    assert differences(_parts(tmp_path)["version"], _parts(tmp_path, newer)["version"]) == [': "1" became "2"']


def test_the_functions_that_a_transform_and_a_reader_use_count(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(RECIPE.replace("import helper_@", "used = len").replace("helper_@.used", "used"))
    recipe = find(str(tmp_path / "mine.py"))()
    parts = stage_parts(recipe, [MinMax(columns=("x",))], [ParquetReader()])
    assert "clew.data.transforms.scale:_values" in parts["transforms"]["code"]
    assert "clew.data.readers.parquet:_is_list" in parts["read"]["readers_code"]


def test_a_key_does_not_depend_on_the_order_of_names() -> None:
    assert key_of({"a": 1, "b": [2.5, None]}) == key_of({"b": [2.5, None], "a": 1})


def _without_helper(parts: dict[str, object]) -> dict[str, object]:
    """The names of the helper modules differ between folders, and are part of the code that uses them."""
    code = {name: digest for name, digest in dict(parts["code"]).items() if name in ("apply", "Mine.prepare")}  # type: ignore[call-overload]
    return {**parts, "code": code}
