"""The pages on the architecture and its decisions name files and functions that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import clew

SOURCE = Path(clew.__file__).parent
PAGE = Path(__file__).parents[1] / "docs" / "explanation" / "architecture.md"
TEXT = PAGE.read_text()
BOTH = TEXT + PAGE.with_name("decisions.md").read_text()
FILES = sorted(set(re.findall(r"`((?:[a-z_0-9]+/)*[a-z_0-9]+\.py)`", BOTH)) - {"tests/test_layers.py"})
NAMES = sorted(set(re.findall(r"`((?:[a-z_0-9]+/)*[a-z_0-9]+\.py)`\s+`([A-Za-z_]\w*)`", BOTH)))


@pytest.mark.parametrize("file", FILES)
def test_named_files_exist(file: str) -> None:
    assert (SOURCE / file).is_file()


@pytest.mark.parametrize(("file", "name"), NAMES)
def test_named_functions_and_classes_exist(file: str, name: str) -> None:
    tree = ast.parse((SOURCE / file).read_text())
    defined = {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    assert name in defined


def test_packages_of_the_table_exist_and_none_is_missing() -> None:
    table = TEXT.partition("## The tree")[2].partition("## Layers")[0]
    named = set(re.findall(r"^\| `(\w+)/`", table, re.MULTILINE))
    folders = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert named == folders
