"""Evaluation of a file of generated samples against a file of true ones, without a run."""

from __future__ import annotations

import time
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from clew.data.prepare import stages
from clew.data.prepare.inputs import input_files
from clew.data.table import Table
from clew.errors import ConfigError, DataError
from clew.figure import Figure
from clew.inference.compared_samples import ComparedSamples
from clew.inference.evaluate import Evaluation
from clew.recipe import Recipe
from clew.runs.html_page import HtmlPage, label, score_cell, table
from clew.runs.scores import Score

SHOWN = 200
"""Samples of each source among which a recipe chooses those that it draws."""


class FileEvaluation(NamedTuple):
    """The result of an evaluation of files."""

    evaluation: Evaluation
    report: Path


def evaluate_files(recipe: Recipe, generated: Sequence[str], against: Sequence[str], *, output: Path) -> FileEvaluation:
    """Compare generated samples with true ones, and write a report.

    Args:
        recipe: The recipe that reads, prepares and compares the samples.
        generated: Files or patterns of generated samples.
        against: Files or patterns of true samples.
        output: The report, an HTML file.

    Returns:
        The metrics and the path of the report.

    Raises:
        ConfigError: The recipe has no comparison.
        DataError: A file cannot be used.
    """
    start, limit = time.perf_counter(), recipe.comparison_size()
    if not limit:
        raise ConfigError(
            f"recipe {recipe.location or type(recipe).__name__} cannot evaluate a file against a file: it has no "
            "comparison; evaluate a run: clew evaluate RUN --input FILE"
        )
    samples = ComparedSamples(limit)
    for tables, patterns in ((samples.true, against), (samples.generated, generated)):
        tables += read_samples(recipe, patterns, limit)
    result = samples.compare(recipe)
    first = [tables[0].slice(0, min(SHOWN, len(tables[0]))) for tables in (samples.true, samples.generated)]
    figures = {**result.figures, **recipe.display(first[0], {}, first[1])}
    events = min(sum(map(len, tables)) for tables in (samples.true, samples.generated))
    name = f"{', '.join(generated)} against {', '.join(against)}"
    evaluation = Evaluation(name, result.metrics, events, time.perf_counter() - start)
    return FileEvaluation(evaluation, _write(evaluation, recipe, figures, output))


def read_samples(recipe: Recipe, patterns: Sequence[str], limit: int) -> list[Table]:
    """Read and prepare up to `limit` samples of files.

    Raises:
        DataError: A file cannot be used, or no sample is left.
    """
    tables: list[Table] = []
    for location in input_files(recipe, patterns):
        for piece in stages.file_pieces(recipe, recipe.transforms(), location):
            free = limit - sum(map(len, tables))
            if free <= 0:
                return tables
            samples = piece()
            tables += [samples.slice(0, min(free, len(samples)))] if len(samples) else []
    if not tables:
        raise DataError(f"{', '.join(patterns)}: no samples in it")
    return tables


def _write(evaluation: Evaluation, recipe: Recipe, figures: dict[str, Figure], output: Path) -> Path:
    page = HtmlPage(evaluation.name)
    page.header(facts=[f"recipe <b>{escape(recipe.location)}</b>", f"{evaluation.events:,} samples of each source"])
    numbers = {name: metric for name, metric in evaluation.metrics.items() if metric.scalar}
    rows = [(label(name), score_cell(Score.of_metric(metric))) for name, metric in numbers.items()]
    page.section("Quality", table((), rows))
    tasks: dict[str, list[Figure]] = {}
    for name, metric in evaluation.metrics.items():
        tasks.setdefault(name.rpartition("/")[0], []).extend(metric.figures(name.replace("_", " ")).values())
    for drawn in figures.values():
        tasks.setdefault(drawn["layout"].get("meta", {}).get("task", ""), []).append(drawn)
    for task, shown in sorted(tasks.items()):
        page.section(task.capitalize() or "Examples", figures=shown)
    return page.write(output)
