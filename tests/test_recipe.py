"""Finding recipes, and the error line for one that cannot be used."""

from __future__ import annotations

import ast
import importlib
import re
import textwrap
import tomllib
from pathlib import Path

import pytest

import clew
from clew.data.table import Table
from clew.errors import RecipeError
from clew.recipe import Recipe, available, find, shipped

ROOT = Path(__file__).parent.parent
ENTRY_POINTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
PLACES = [place for points in ENTRY_POINTS.values() for place in points.values()]

GOOD = """
    from clew import Recipe

    class Mine(Recipe):
        def prepare(self, events): return events
        def model(self): return None
"""


def write(folder: Path, text: str, name: str = "mine.py") -> Path:
    path = folder / name
    path.write_text(textwrap.dedent(text).lstrip())
    return path


def complaint(path: Path) -> str:
    """The error line, with the path of the file shortened to its name."""
    with pytest.raises(RecipeError) as caught:
        find(str(path))
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value).replace(str(path), path.name)


def test_a_file_with_one_recipe_is_found(tmp_path: Path) -> None:
    recipe_class = find(str(write(tmp_path, GOOD)))
    assert issubclass(recipe_class, Recipe)
    assert recipe_class.__name__ == "Mine"


def test_a_relative_file_is_looked_up_from_the_base(tmp_path: Path) -> None:
    write(tmp_path, GOOD)
    assert find("mine.py", base=tmp_path) is find("./mine.py", base=tmp_path)


def test_files_of_one_name_in_two_folders_are_two_recipes(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
        write(folder, GOOD)
    assert find("mine.py", base=folders[0]) is not find("mine.py", base=folders[1])


def test_an_unknown_name_suggests_the_nearest() -> None:
    assert "tracking" in available()
    with pytest.raises(RecipeError, match=r"no recipe 'trackng'; did you mean 'tracking'\? \(or give a file"):
        find("trackng")


@pytest.mark.parametrize("place", PLACES)
def test_every_entry_point_of_clew_leads_to_a_class(place: str) -> None:
    """If this fails, a class moved: change its line under [project.entry-points] in pyproject.toml, install again."""
    module, _, name = place.partition(":")
    assert isinstance(getattr(importlib.import_module(module), name), type)


def test_shipped_recipes_are_found_by_their_name() -> None:
    assert set(shipped()) <= set(available())
    assert find("tracking") is importlib.import_module("clew.recipes.tracking").Tracking


def test_the_entry_points_of_other_packages_are_read_only_for_names_that_clew_has_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(**query: str) -> None:
        raise AssertionError("reads the metadata of every installed package")

    monkeypatch.setattr("importlib.metadata.entry_points", refuse)
    assert find("tracking").__name__ == "Tracking"
    with pytest.raises(AssertionError, match="every installed package"):
        find("trackng")


def test_another_package_adds_a_recipe_and_cannot_replace_one_of_clew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, GOOD, "clew_other_package.py")
    metadata = tmp_path / "clew_other_package-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: clew_other_package\nVersion: 1.0\n")
    lines = "[clew.recipes]\nother = clew_other_package:Mine\ntracking = clew_other_package:Mine\n"
    (metadata / "entry_points.txt").write_text(lines)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert find("other").__name__ == "Mine"
    assert find("tracking").__name__ == "Tracking"


def test_no_module_of_the_core_names_a_module_of_a_recipe() -> None:
    source = Path(clew.__file__).parent
    for path in source.rglob("*.py"):
        if path.is_relative_to(source / "recipes"):
            continue
        strings = [node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)]
        assert not [text for text in strings if isinstance(text, str) and re.match(r"clew\.recipes\.\w", text)], path


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert complaint(tmp_path / "gone.py") == "no recipe file gone.py"
    with pytest.raises(RecipeError, match="no recipe file"):
        find(f"{tmp_path}/")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = 1\nclass Mine(:\n    pass\n", "mine.py:2: SyntaxError: invalid syntax"),
        ("x = 1\n\nraise ValueError('no luck')\n", "mine.py:3: ValueError: no luck"),
        ("def f():\n    return {}['a']\n\nf()\n", "mine.py:2: KeyError: 'a'"),
        ("import not_installed_anywhere\n", "mine.py:1: ModuleNotFoundError: No module named 'not_installed_anywhere'"),
        ("raise ValueError('two\\nlines')\n", "mine.py:1: ValueError: two lines"),
    ],
)
def test_a_file_that_does_not_load_is_placed(tmp_path: Path, text: str, expected: str) -> None:
    assert complaint(write(tmp_path, text)) == expected


def test_a_file_put_right_loads_after_it_failed(tmp_path: Path) -> None:
    path = write(tmp_path, "raise ValueError\n")
    complaint(path)
    write(tmp_path, GOOD)
    assert find(str(path)).__name__ == "Mine"


@pytest.mark.parametrize("text", ["x = 1\n", "from clew import Recipe\n", "from clew.recipe import Recipe as Base\n"])
def test_a_file_without_a_recipe_of_its_own_is_refused(tmp_path: Path, text: str) -> None:
    assert complaint(write(tmp_path, text)).startswith("mine.py: expected one subclass of clew.Recipe, found none")


def test_a_file_with_two_recipes_is_refused(tmp_path: Path) -> None:
    text = textwrap.dedent(GOOD) + "\nclass Other(Mine):\n    pass\n"
    assert complaint(write(tmp_path, text)).startswith(
        "mine.py: expected one subclass of clew.Recipe, found Mine, Other"
    )


@pytest.mark.parametrize(("written", "missing"), [("model", "prepare"), ("prepare", "model")])
def test_a_recipe_without_a_required_method_is_refused(tmp_path: Path, written: str, missing: str) -> None:
    text = f"from clew import Recipe\n\nclass Mine(Recipe):\n    def {written}(self, *given): ...\n"
    assert complaint(write(tmp_path, text)) == f"mine.py: recipe Mine must define {missing}()"


def test_a_recipe_may_inherit_its_methods_from_another_file(tmp_path: Path) -> None:
    write(tmp_path, GOOD, "base.py")
    text = f"""
        from clew.recipe import find

        class Mine(find({str(tmp_path / "base.py")!r})):
            version = "2"
    """
    assert find(str(write(tmp_path, text))).version == "2"


def test_methods_left_out_say_what_to_write() -> None:
    for call in (lambda: Recipe().prepare(Table({})), lambda: Recipe().model()):
        with pytest.raises(RecipeError, match=r"recipe Recipe must define (prepare|model)"):
            call()


@pytest.mark.long
def test_the_default_reader_takes_table_files(tmp_path: Path) -> None:
    Table({"x": [1, 2]}).save(tmp_path / "events.h5")
    (events,) = Recipe().read(str(tmp_path / "events.h5"))
    assert len(events) == 2
