"""The objectives and the cost of a run, computed from its records."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from clew.errors import MissingMetricError, nearest
from clew.runs import Run
from clew.runs.records import Record, read
from clew.runs.summary import summarize
from clew.tuning.config import Objective


@dataclass(frozen=True)
class RunCost:
    """The cost of a run over all its attempts."""

    seconds: float
    """Elapsed time."""
    cpu: float
    """Processor time of all ranks, in seconds."""
    started: float = 0.0
    """Time of the first start, in seconds since 1970."""


def objective_values(run: Run, objectives: Sequence[Objective]) -> tuple[float, ...]:
    """Return the objectives at the best validation. The first `val/` objective decides which one is the best.

    Raises:
        MissingMetricError: The run was not validated, or its validations lack a metric.
    """
    history = run.history(run.main_stream)
    best = _best_validation([record for record in history if record["kind"] == "validation"], objectives)
    return tuple(_objective_value(run, best, objective) for objective in objectives)


def _best_validation(validations: list[Record], objectives: Sequence[Objective]) -> Record:
    first = next((objective for objective in objectives if objective.validated), None)
    if first is None or not validations:
        return validations[-1] if validations else {"metrics": {}}
    # after a boosting round nothing is saved: only the last validation is that of a checkpoint
    validations = [record for record in validations if not record.get("partial")] or validations
    name, sign = str(first.validated), 1 if first.goal == "minimize" else -1
    with_metric = [record for record in validations if record["metrics"].get(name) is not None]
    if not with_metric:
        return validations[-1]
    return min(with_metric, key=lambda record: sign * record["metrics"][name])


def _objective_value(run: Run, best: Record, objective: Objective) -> float:
    if objective.validated is not None:
        if objective.validated not in best["metrics"]:
            raise MissingMetricError(_missing_metric(objective, list(best["metrics"])))
        value = best["metrics"][objective.validated]
        return math.nan if value is None else float(value)
    name = objective.metric.partition("/")[2]
    if name in ("seconds", "cpu_seconds"):
        cost = run_cost(run)
        return cost.seconds if name == "seconds" else cost.cpu
    summary = summarize(run)
    return float(getattr(summary if hasattr(summary, name) else summary.times, name))


def missing_metric_message(end: Record, objectives: Sequence[Objective]) -> str:
    """Return the study's message if a run failed because an objective is not a metric; else an empty string.

    Args:
        end: The last record of the run.
        objectives: The objectives of the study.
    """
    if end.get("error") != MissingMetricError.__name__:
        return ""
    objective = next((each for each in objectives if each.validated == end.get("metric")), None)
    return "" if objective is None else _missing_metric(objective, end["metrics"])


def _missing_metric(objective: Objective, metrics: Sequence[str]) -> str:
    names = [f"val/{name}" for name in metrics]
    hint = nearest(objective.metric, names) if names else ": it was never validated"
    return f"tune.objective '{objective.metric}' is not a metric of these runs{hint}"


def run_cost(run: Run) -> RunCost:
    """Return the cost of a run so far. The elapsed time of a killed attempt ends with its last record."""
    seconds = cpu = first_start = 0.0
    for stream in run.streams():
        start = last = None
        for record in run.records(stream):
            if record["kind"] == "start":
                seconds += last - start if stream == run.main_stream and start is not None and last is not None else 0.0
                start = record["time"]
                first_start = first_start or start
            last = record["time"]
            cpu += record.get("cpu", 0.0) if record["kind"] == "end" else 0.0
        if stream == run.main_stream and start is not None and last is not None:
            seconds += last - start
    return RunCost(seconds, cpu, first_start)


class ValidationReader:
    """Reads the validations of a run as they are recorded."""

    def __init__(self, run: Run) -> None:
        self._path: Path = run.records_folder / "rank-0.jsonl"
        self._size = 0
        self._sequence = -1

    def new(self) -> Iterator[tuple[int, dict[str, float | None]]]:
        """Yield the validations since the last call: the number of epochs done, and the metrics."""
        try:
            size = self._path.stat().st_size
        except FileNotFoundError:
            return
        if size == self._size:
            return
        self._size = size
        for record in read(self._path, after=self._sequence):
            self._sequence = record["seq"]
            if record["kind"] == "validation":
                yield int(record["epoch"]) + 1, record["metrics"]
