"""What a run was worth: the objectives of a study, and its costs, from the run's records alone."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from clew.errors import nearest
from clew.runs import Run
from clew.runs.records import Record, read
from clew.runs.summary import summarize
from clew.tuning.config import Objective


class MissingMetricError(Exception):
    """A run has no such metric."""


@dataclass(frozen=True)
class RunCost:
    """Of a run, over all attempts: seconds on the clock and on the processors of all its ranks."""

    seconds: float
    cpu: float
    begun: float = 0.0
    """When that was, in seconds since 1970."""


def objective_values(run: Run, objectives: Sequence[Objective]) -> tuple[float, ...]:
    """The objectives at the validation that is best by the first of them that is validated.

    Raises:
        MissingMetricError: there is none, or it lacks a metric.
    """
    history = run.history(run.main_stream)
    best = _best([each for each in history if each["kind"] == "validation"], objectives)
    return tuple(_value(run, best, each) for each in objectives)


def _best(validations: list[Record], objectives: Sequence[Objective]) -> Record:
    lead = next((each for each in objectives if each.validated), None)
    if lead is None or not validations:
        return validations[-1] if validations else {"metrics": {}}
    name, sign = str(lead.validated), 1 if lead.direction == "minimize" else -1
    known = [each for each in validations if each["metrics"].get(name) is not None]
    return min(known, key=lambda each: sign * each["metrics"][name]) if known else validations[-1]


def _value(run: Run, best: Record, objective: Objective) -> float:
    if objective.validated is not None:
        if objective.validated not in best["metrics"]:
            raise MissingMetricError(_missing(objective, list(best["metrics"])))
        found = best["metrics"][objective.validated]
        return math.nan if found is None else float(found)
    name = objective.metric.partition("/")[2]
    if name in ("seconds", "cpu_seconds"):
        spent = run_cost(run)
        return spent.seconds if name == "seconds" else spent.cpu
    return float(getattr(summarize(run), name))


def missing_metric_message(told: str, objectives: Sequence[Objective]) -> str:
    """What a study says where a run's last words are that it has no such metric; '' where they are others."""
    found = re.match(r"train\.best\.metric '(.+)' is not among ([^;]*)", told)
    lead = next((each for each in objectives if found is not None and each.validated == found[1]), None)
    return "" if found is None or lead is None else _missing(lead, found[2].split(", "))


def _missing(objective: Objective, known: Sequence[str]) -> str:
    names = [f"val/{name}" for name in known]
    told = nearest(objective.metric, names) if names else ": it was never validated"
    return f"tune.objective '{objective.metric}' is no metric of these trainings{told}"


def run_cost(run: Run) -> RunCost:
    """What it took so far. An attempt that was killed counts on the clock up to its last record."""
    seconds = cpu = first = 0.0
    for stream in run.streams():
        begun = last = None
        for record in run.records(stream):
            if record["kind"] == "start":
                seconds += last - begun if stream == run.main_stream and begun is not None and last is not None else 0.0
                begun = record["time"]
                first = first or begun
            last = record["time"]
            cpu += record.get("cpu", 0.0) if record["kind"] == "end" else 0.0
        if stream == run.main_stream and begun is not None and last is not None:
            seconds += last - begun
    return RunCost(seconds, cpu, first)


class ValidationReader:
    """The validations of a run, as they come in."""

    def __init__(self, run: Run) -> None:
        self._path: Path = run.records_folder / "rank-0.jsonl"
        self._size = 0
        self._seq = -1

    def new(self) -> Iterator[tuple[int, dict[str, float | None]]]:
        """Those since the last time: the number of epochs done, and the metrics."""
        try:
            size = self._path.stat().st_size
        except FileNotFoundError:
            return
        if size == self._size:
            return
        self._size = size
        for record in read(self._path, after=self._seq):
            self._seq = record["seq"]
            if record["kind"] == "validation":
                yield int(record["epoch"]) + 1, record["metrics"]
