"""clew: high-energy-physics machine learning from raw events to trained, tuned and benchmarked models.

The public names are those in `__all__`. Each one loads what it needs on first use, so `import clew` is instant.

If Keras is imported after clew, it uses its torch backend, unless the variable KERAS_BACKEND names another one.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from clew.version import __version__

if TYPE_CHECKING:
    from clew import distributed, errors, figure, metrics, readers, rules, strategies, transforms, weaver
    from clew.client.client import Client
    from clew.core.config import Section
    from clew.data.dataset import Batch, Dataset
    from clew.data.prepare.api import prepare
    from clew.data.table import Ragged, Table, concat
    from clew.data.table_cache import cached_table
    from clew.distributed import artefact, log
    from clew.inference.evaluate import evaluate
    from clew.inference.export.api import export
    from clew.inference.generate import generate
    from clew.inference.predict import predict
    from clew.recipe import Loss, Recipe, TakenSteps, TrainingHooks, TrainingPlan
    from clew.runs import Run
    from clew.runs.comparison import compare_runs
    from clew.runs.frame import runs_frame as runs
    from clew.training.api import resume, train
    from clew.tuning.api import tune
    from clew.tuning.config import TuneConfig
    from clew.tuning.study import Study

# clew computes with torch. Keras reads this when it is imported; its own default, TensorFlow, may not be installed.
os.environ.setdefault("KERAS_BACKEND", "torch")

_MODULES = (
    "distributed",
    "errors",
    "figure",
    "metrics",
    "readers",
    "rules",
    "runs",
    "strategies",
    "transforms",
    "weaver",
)
_NAMES = {
    "Batch": "clew.data.dataset",
    "Client": "clew.client.client",
    "Dataset": "clew.data.dataset",
    "Loss": "clew.recipe",
    "Ragged": "clew.data.table",
    "Recipe": "clew.recipe",
    "Run": "clew.runs",
    "Section": "clew.core.config",
    "Study": "clew.tuning.study",
    "Table": "clew.data.table",
    "TakenSteps": "clew.recipe",
    "TrainingHooks": "clew.recipe",
    "TrainingPlan": "clew.recipe",
    "TuneConfig": "clew.tuning.config",
    "artefact": "clew.distributed",
    "cached_table": "clew.data.table_cache",
    "compare_runs": "clew.runs.comparison",
    "concat": "clew.data.table",
    "evaluate": "clew.inference.evaluate",
    "export": "clew.inference.export.api",
    "generate": "clew.inference.generate",
    "log": "clew.distributed",
    "predict": "clew.inference.predict",
    "prepare": "clew.data.prepare.api",
    "resume": "clew.training.api",
    "train": "clew.training.api",
    "tune": "clew.tuning.api",
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
    "Study",
    "Table",
    "TakenSteps",
    "TrainingHooks",
    "TrainingPlan",
    "TuneConfig",
    "__version__",
    "artefact",
    "cached_table",
    "compare_runs",
    "concat",
    "distributed",
    "errors",
    "evaluate",
    "export",
    "figure",
    "generate",
    "log",
    "metrics",
    "predict",
    "prepare",
    "readers",
    "resume",
    "rules",
    "runs",
    "strategies",
    "train",
    "transforms",
    "tune",
    "weaver",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"clew.{name}")
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    raise AttributeError(f"module 'clew' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
