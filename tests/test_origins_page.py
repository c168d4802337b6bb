"""The matrix of docs/reference/come-as-you-are.md: every cell names a test that exists, or says why there is none."""

from __future__ import annotations

import ast
import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "come-as-you-are.md"
TEXT = PAGE.read_text()
REFERENCES = {
    name: (PAGE.parent / file, test)
    for name, file, test in re.findall(r'^\[([\w-]+)\]: (\S+) "(\w+)"$', TEXT, flags=re.MULTILINE)
}
WITHOUT_TEST = ("as the model", "in files", "from its files", "")
"""What a cell may say without naming a test; the page explains each."""


def test_every_reference_is_a_test_that_exists() -> None:
    assert len(REFERENCES) > 40
    for file, test in REFERENCES.values():
        functions = [each.name for each in ast.parse(file.read_text()).body if isinstance(each, ast.FunctionDef)]
        assert test.startswith("test_") and test in functions, f"{file.name}: {test}"


def test_every_link_has_its_reference_and_every_reference_is_used() -> None:
    used = set(re.findall(r"\]\[([\w-]+)\]", TEXT))
    assert used == REFERENCES.keys()


def test_every_cell_names_a_test() -> None:
    rows = [line.strip("|").split("|") for line in TEXT.partition('\n\n"As')[0].splitlines() if line.startswith("|")]
    head, _, *origins = [[cell.strip() for cell in row] for row in rows]
    assert head == ["from", "train", "tune", "evaluate", "predict", "export", "submit", "strategies", "resume"]
    for name, *cells in origins:
        assert len(cells) == len(head) - 1
        for cell in cells:
            assert "][" in cell or cell in WITHOUT_TEST, f"{name}: {cell}"
