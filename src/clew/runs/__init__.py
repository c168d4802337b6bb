"""A run's folder: what was asked, what happened, how it ended. Plain files; no server needed.

The module can be called: `clew.runs("runs")` returns all runs of a folder as a pandas data frame.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from clew.runs.folder import RUNS, Run, list_runs
from clew.runs.records import Record, RecordWriter

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["Record", "RecordWriter", "Run", "list_runs"]


class _CallableModule(ModuleType):
    """This module as a function: the package has the name that users expect of the function."""

    def __call__(self, folder: str | Path = RUNS) -> DataFrame:
        """Return all runs of a folder as a data frame; see `clew.runs.frame.runs_frame`."""
        from clew.runs.frame import runs_frame

        return runs_frame(folder)


sys.modules[__name__].__class__ = _CallableModule
