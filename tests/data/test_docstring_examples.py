"""The examples in the docstrings of core and data run, and the classes that users extend have one."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import clew
import clew.core
import clew.data
from clew.data.dataset import Batch, Dataset
from clew.data.readers import Reader
from clew.data.table import Ragged, Table
from clew.data.transforms import FittedTransform, Transform
from clew.data.writers import TableWriter


def _modules(package: ModuleType) -> list[str]:
    return [package.__name__, *(info.name for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."))]


@pytest.mark.parametrize("name", [name for package in (clew.core, clew.data) for name in _modules(package)])
def test_the_examples_of_a_module_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEW_CACHE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    failed, _ = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert failed == 0


@pytest.mark.parametrize(
    "public", [Table, Ragged, Dataset, Batch, Reader, Transform, FittedTransform, TableWriter, clew.prepare]
)
def test_what_users_call_or_extend_has_an_example(public: Any) -> None:
    assert ">>> " in (inspect.getdoc(public) or "")
