"""The metrics of a run as a table: one row per metric, one column per evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clew.cli.options import console
from clew.cli.text_table import Column, line_width, write
from clew.runs.scores import Score

_VALIDATION = "validation"


def show_scores(validation: Mapping[str, float | None], evaluations: Mapping[str, Mapping[str, Any]]) -> None:
    """Print the newest validation and all evaluations with their errors; nothing if there are none.

    Columns of evaluations that do not fit the terminal are dropped, the last ones first.

    Args:
        validation: Metrics of the newest validation.
        evaluations: The newest record of each evaluation, by name.
    """
    scores = {_VALIDATION: {name: Score(value) for name, value in validation.items()}} if validation else {}
    for name, record in evaluations.items():
        scores[name] = {metric: Score.read(entry) for metric, entry in record["metrics"].items()}
    metrics = list(dict.fromkeys(metric for each in scores.values() for metric in each))
    if not metrics:
        return
    console.print()
    write(_columns(metrics, scores), width=line_width())


def _columns(metrics: list[str], scores: Mapping[str, Mapping[str, Score]]) -> list[Column]:
    columns = [Column("metric", metrics)]
    for place, (name, by_metric) in enumerate(scores.items()):
        cells = [by_metric[metric].text if metric in by_metric else "–" for metric in metrics]
        columns.append(Column(name, cells, rank=place, right=True))
    return columns
