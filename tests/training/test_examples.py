"""The examples in the docstrings of the public functions run as they are written."""

from __future__ import annotations

import contextlib
import doctest
from pathlib import Path
from typing import Any

import pytest

import clew
from clew.training.api import resume


def run_example(item: Any, folder: Path) -> None:
    example = doctest.DocTestParser().get_doctest(item.__doc__, {}, item.__name__, None, 0)
    assert example.examples
    with contextlib.chdir(folder):
        assert doctest.DocTestRunner(optionflags=doctest.IGNORE_EXCEPTION_DETAIL).run(example).failed == 0


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the example of `clew.train` was run. The other examples use its run."""
    folder = tmp_path_factory.mktemp("examples")
    run_example(clew.train, folder)
    return folder


@pytest.mark.parametrize("item", [clew.train, resume, clew.evaluate, clew.predict, clew.export, clew.distributed])
def test_the_example_of_a_docstring_runs(item: Any, trained: Path, tmp_path: Path) -> None:
    run_example(item, tmp_path if item is clew.train else trained)
