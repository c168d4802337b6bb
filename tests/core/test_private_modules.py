"""Modules of several folders under the same names, in one process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from clew.core.private_modules import PREFIX, load_private


@pytest.fixture(autouse=True)
def _no_modules_stay() -> Iterator[None]:
    finders, names = list(sys.meta_path), set(sys.modules)
    yield
    sys.meta_path[:] = finders
    for name in set(sys.modules) - names:
        del sys.modules[name]


def folder(path: Path, **files: str) -> Path:
    """Files by name, with `__` for a slash."""
    for name, text in files.items():
        file = path.joinpath(*name.split("__")).with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return path


def test_each_folder_has_its_own_modules(tmp_path: Path) -> None:
    roots = [
        folder(tmp_path / name, recipe="import network\nname = network.name", network=f"name = {name!r}")
        for name in "ab"
    ]
    made = [load_private(root, root / "recipe.py", "1") for root in roots]
    assert [module.name for module in made] == ["a", "b"]
    assert "network" not in sys.modules and made[0].__name__.startswith(PREFIX)
    assert len(made[0].__name__) == len(PREFIX) + len("0123abcd.recipe")


def test_a_file_is_executed_once_for_each_version(tmp_path: Path) -> None:
    root = folder(tmp_path, recipe="times = []")
    first = load_private(root, root / "recipe.py", "1")
    assert load_private(root, root / "recipe.py", "1") is first
    assert load_private(root, root / "recipe.py", "2") is not first


@pytest.mark.parametrize(
    "line",
    [
        "import parts.network\nname = parts.network.name",
        "import parts.network as network\nname = network.name",
        "from parts.network import name",
        "from parts import network\nname = network.name",
        "from .parts import network\nname = network.name",
        "import bare.network\nname = bare.network.name",
    ],
)
def test_packages_are_found_with_and_without_an_init_file(line: str, tmp_path: Path) -> None:
    root = folder(tmp_path, recipe=line, parts____init____="", parts__network="name = 'n'", bare__network="name = 'n'")
    (root / "parts" / "__init__.py").write_text("marker = 1")
    assert load_private(root, root / "recipe.py", line).name == "n"


def test_files_below_the_folder_can_be_imported(tmp_path: Path) -> None:
    root = folder(tmp_path, parts__recipe="from network import name", network="name = 'n'")
    assert load_private(root, root / "parts" / "recipe.py", "1").name == "n"


def test_libraries_are_not_replaced_by_files(tmp_path: Path) -> None:
    text = "import json, numpy, os.path\nfrom json import dumps\nfound = json, numpy, os.path, dumps"
    root = folder(tmp_path, recipe=text, json="dumps = None")
    import json
    import os.path

    import numpy

    assert load_private(root, root / "recipe.py", "1").found == (json, numpy, os.path, json.dumps)


@pytest.mark.parametrize("line", ["import nothing_of_this_name", "from . import nothing"])
def test_a_module_that_is_not_there_is_an_import_error(line: str, tmp_path: Path) -> None:
    root = folder(tmp_path, recipe=line, parts__network="")
    with pytest.raises(ImportError, match="nothing"):
        load_private(root, root / "recipe.py", "1")


def test_other_code_does_not_see_the_modules(tmp_path: Path) -> None:
    root = folder(tmp_path, recipe="import network_of_this_test", network_of_this_test="")
    load_private(root, root / "recipe.py", "1")
    with pytest.raises(ImportError):
        __import__("network_of_this_test")


def test_errors_of_a_file_are_raised_and_no_byte_code_is_written(tmp_path: Path) -> None:
    root = folder(tmp_path, recipe="import network\n1 / 0", network="")
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            load_private(root, root / "recipe.py", "1")
    assert sorted(path.name for path in root.rglob("*")) == ["network.py", "recipe.py"]
