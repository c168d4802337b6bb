"""The examples in the docstrings of the public functions run as they are written."""

from __future__ import annotations

import doctest
from pathlib import Path
from typing import Any

import pytest

import clew
from clew.training.api import resume


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("examples")


@pytest.mark.parametrize("item", [clew.train, resume, clew.evaluate, clew.predict, clew.export, clew.distributed])
def test_the_example_of_a_docstring_runs(item: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The examples run in this order in one folder: the later ones use the run of the first."""
    monkeypatch.chdir(folder)
    example = doctest.DocTestParser().get_doctest(item.__doc__, {}, item.__name__, None, 0)
    assert example.examples
    assert doctest.DocTestRunner(optionflags=doctest.IGNORE_EXCEPTION_DETAIL).run(example).failed == 0
