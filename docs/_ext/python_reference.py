"""The page of the Python interface: every public name, in sections. Sphinx's autodoc reads the docstrings."""

from __future__ import annotations

import importlib
import inspect
from types import ModuleType

import clew
from clew import testing
from clew.runs.frame import runs_frame

FUNCTIONS = ("prepare", "train", "resume", "tune", "evaluate", "predict", "generate", "export", "runs")
RECIPES = ("Recipe", "Section", "Loss", "Batch", "TrainingHooks", "TrainingPlan", "TakenSteps")
DATA = ("Table", "Ragged", "concat", "cached_table", "Dataset")
RUNS = ("Run", "compare_runs", "TuneConfig", "Study", "Client", "log", "artefact")
SECTIONS: dict[str, tuple[str, ...]] = {
    "Functions": FUNCTIONS,
    "Recipes": RECIPES,
    "Data": DATA,
    "Runs, studies and the service": RUNS,
}
MODULES: dict[str, tuple[str, ...] | None] = {
    "distributed": ("setup", "wrap", "log", "artefact", "close", "DistributedSession"),
    "errors": (),
    "figure": (),
    "metrics": (),
    "readers": None,
    "transforms": None,
    "strategies": None,
    "rules": None,
    "weaver": None,
}
"""Modules, and what is shown of them: names; all that they define (an empty tuple); or their `__all__` (None)."""


def python_markdown() -> str:
    """Return the directives of autodoc for every public name, with headings."""
    parts = []
    for title, group in SECTIONS.items():
        parts += [f"## {title}", *(_name("clew", name) for name in group)]
    for module, names in MODULES.items():
        parts += [f"## clew.{module}", _rst(f".. automodule:: clew.{module}\n   :no-members:")]
        if names == ():
            parts.append(_rst(f".. automodule:: clew.{module}\n   :members:\n   :no-index:\n   :noindex:"))
        listed = getattr(getattr(clew, module), "__all__", ()) if names is None else names
        parts += [_name(f"clew.{module}", name) for name in listed]
    parts += ["## clew.testing", _rst(".. automodule:: clew.testing\n   :no-members:")]
    parts += [_name("clew.testing", name) for name in testing.__all__]
    return "\n\n".join(parts)


def shown_names() -> set[str]:
    """Return the names of `clew` that the page shows."""
    return {*FUNCTIONS, *RECIPES, *DATA, *RUNS, *MODULES, "__version__"}


def _name(module: str, name: str) -> str:
    value = getattr(importlib.import_module(module), name)
    if isinstance(value, type):
        return _rst(f".. autoclass:: {module}.{name}\n   :members:")
    if isinstance(value, ModuleType):  # `clew.runs` is a module that can be called
        summary = (inspect.getdoc(runs_frame) or "").split("\n\n")[0].replace("`", "``")
        return _rst(f".. py:function:: clew.runs(folder='runs')\n\n   {' '.join(summary.split())}")
    if callable(value):
        return _rst(f".. autofunction:: {module}.{name}")
    return _rst(f".. autodata:: {module}.{name}\n   :no-value:")


def _rst(text: str) -> str:
    return f"```{{eval-rst}}\n{text}\n```"
