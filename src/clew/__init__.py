"""clew: high-energy-physics machine learning from raw events to trained, tuned and benchmarked models.

The public names are those in `__all__`; they load what they need on first use, so `import clew` is instant.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from clew.version import __version__

if TYPE_CHECKING:
    from clew import distributed, errors, figure, readers, tally, transforms
    from clew.config import Section
    from clew.dataset import Batch, Dataset
    from clew.export.api import export
    from clew.ledger import Run
    from clew.prepare.api import prepare
    from clew.recipe import Loss, Recipe
    from clew.service.client import Client
    from clew.table import Ragged, Table, concat
    from clew.train.api import train
    from clew.train.evaluate import evaluate
    from clew.train.predict import predict
    from clew.tune.api import tune

_MODULES = ("distributed", "errors", "export", "figure", "prepare", "readers", "tally", "train", "transforms", "tune")
_NAMES = {
    "Batch": "clew.dataset",
    "Client": "clew.service.client",
    "Dataset": "clew.dataset",
    "Loss": "clew.recipe",
    "Ragged": "clew.table",
    "Recipe": "clew.recipe",
    "Run": "clew.ledger",
    "Section": "clew.config",
    "Table": "clew.table",
    "concat": "clew.table",
    "evaluate": "clew.train.evaluate",
    "predict": "clew.train.predict",
}

__all__ = [
    "Batch",
    "Client",
    "Dataset",
    "Loss",
    "Ragged",
    "Recipe",
    "Run",
    "Section",
    "Table",
    "__version__",
    "concat",
    "distributed",
    "errors",
    "evaluate",
    "export",
    "figure",
    "predict",
    "prepare",
    "readers",
    "tally",
    "train",
    "transforms",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"clew.{name}")
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    raise AttributeError(f"module 'clew' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
