"""Evaluations of runs: metrics with their statistical errors, from the records of the stream `evaluate`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from clew.runs.record_metrics import clean_text, whole_number
from clew.runs.scores import Score
from clew.server.database.tables import records, streams

STREAM = "evaluate"
_MAX_RECORDS = 2000
"""Evaluations that one page reads, the newest first."""
_MAX_NAME = 200


@dataclass(frozen=True)
class RunEvaluation:
    """One evaluation of a run."""

    name: str
    events: int
    scores: dict[str, Score]
    """By metric."""


def run_evaluations(connection: sa.Connection, runs: Iterable[int]) -> dict[int, dict[str, RunEvaluation]]:
    """Return the newest evaluation of each name, by run and name, in the order of their first record.

    Args:
        connection: An open connection.
        runs: The ids of the runs.
    """
    query = sa.select(streams.c.run, records.c.body).join(streams, streams.c.id == records.c.stream)
    query = query.where(streams.c.run.in_(list(runs)), streams.c.name == STREAM, records.c.kind == "evaluation")
    newest = list(connection.execute(query.order_by(records.c.seq.desc()).limit(_MAX_RECORDS)))
    by_run: dict[int, dict[str, RunEvaluation]] = {}
    for row in reversed(newest):
        evaluation = _read(json.loads(row.body))
        by_run.setdefault(row.run, {})[evaluation.name] = evaluation
    return by_run


def _read(record: Mapping[str, Any]) -> RunEvaluation:
    """Return the evaluation in a record. Records come from outside: parts may be missing."""
    metrics = record.get("metrics")
    entries = metrics.items() if isinstance(metrics, Mapping) else ()
    scores = {clean_text(name, _MAX_NAME): Score.read(entry) for name, entry in entries}
    return RunEvaluation(
        clean_text(record.get("name"), _MAX_NAME) or "evaluation",
        whole_number(record.get("events"), 0),
        {name: score for name, score in scores.items() if score.value is not None},
    )


def score_rows(evaluations: Sequence[RunEvaluation]) -> list[tuple[str, list[Score | None]]]:
    """Return one row per metric: its name, and its score in each evaluation."""
    names = dict.fromkeys(name for each in evaluations for name in each.scores)
    ordered = sorted(names, key=lambda name: name == "loss")
    return [(name, [each.scores.get(name) for each in evaluations]) for name in ordered]
