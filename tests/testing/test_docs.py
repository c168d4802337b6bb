"""The documentation of the suites: its examples run, and every suite is in its table."""

from __future__ import annotations

import doctest
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from clew import testing
from tests.test_docs import ROOT, _blocks
from tests.testing import run_pytest

PAGE = ROOT / "docs" / "howto" / "testing.md"
SUITES = [name for name in testing.__all__ if name.endswith("Contract")]


def test_the_example_of_a_reader_runs(tmp_path: Path) -> None:
    _, reader, test, *_ = _blocks(PAGE, "python")
    (tmp_path / "numbers_reader.py").write_text(reader)
    (tmp_path / "test_numbers_reader.py").write_text(test)
    words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "test_numbers_reader.py"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0 and "25 passed" in done.stdout, done.stdout


def test_the_examples_of_a_transform_and_a_store_run(tmp_path: Path) -> None:
    chosen = [block for block in _blocks(PAGE, "python") if "TransformContract" in block or "StoreContract" in block]
    done = run_pytest(tmp_path, "\n\n".join(chosen))
    assert done.returncode == 0 and "18 passed" in done.stdout, done.stdout


@pytest.mark.parametrize("name", SUITES)
def test_every_suite_has_an_example_on_the_page(name: str) -> None:
    assert [block for block in _blocks(PAGE, "python") if f"({name}):" in block]


@pytest.mark.parametrize("name", SUITES)
def test_every_suite_is_in_the_table_and_has_an_example(name: str) -> None:
    assert f"| `{name}` |" in PAGE.read_text()
    suite = getattr(testing, name)
    assert ">>> " in (inspect.getdoc(suite) or "")


@pytest.mark.parametrize("module", sorted({getattr(testing, name).__module__ for name in testing.__all__}))
def test_the_examples_of_docstrings_run(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    failed, tried = doctest.testmod(importlib.import_module(module))
    assert tried and not failed


def test_without_pytest_one_line_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['pytest'] = None\ntry: import clew.testing\nexcept ImportError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "clew.testing needs pytest: pip install 'clew[testing]'\n", done.stderr
