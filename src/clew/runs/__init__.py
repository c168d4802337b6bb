"""A run's folder: what was asked, what happened, how it ended. Plain files; no server needed."""

from clew.runs.folder import Run, list_runs
from clew.runs.records import Record, RecordWriter

__all__ = ["Record", "RecordWriter", "Run", "list_runs"]
