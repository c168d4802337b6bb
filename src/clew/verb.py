"""Packages that are also verbs: `clew.train` is where training lives, and `clew.train(...)` trains."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


class _Verb(ModuleType):
    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self._function())

    def _function(self) -> Callable[..., Any]:
        package, _, name = self.__name__.rpartition(".")
        function: Callable[..., Any] = getattr(importlib.import_module(f"{package}.{name}.api"), name)
        return function

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self._function()(*arguments, **options)


def make_callable(name: str) -> None:
    """Let the package `name` be called: it passes everything on to the function of its name in its `api` module.

    Python would otherwise put the package in the place of a function of the same name as soon as it is imported.
    """
    sys.modules[name].__class__ = _Verb
