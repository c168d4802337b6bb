"""Comparison of runs as data: settings that differ, curves, and final metrics."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clew.errors import RunError
from clew.runs.folder import Run
from clew.runs.resource_usage import energy_used
from clew.runs.saved_code import SavedCode, code_differences
from clew.runs.scores import Score
from clew.runs.summary import Summary, summarize

ABSENT = object()
"""Stands for a setting that a run does not have."""
AXES = {"samples": "samples", "seconds": "time [s]", "joules": "energy [J]"}
"""The possible x axes of curves, and their titles."""
_ENVIRONMENT_KEYS = ("host", "cpu", "cores_allowed", "memory_gb", "platform", "python", "clew", "commit")


@dataclass(frozen=True)
class ComparedCurve:
    """A value during a training. All lists have the same length; a missing value is None."""

    values: list[float | None]
    samples: list[float]
    """Samples processed so far, over all ranks."""
    seconds: list[float]
    """Seconds since the start, without the time between a stop and a resume."""
    joules: list[float]
    """Energy used so far; empty if it was not measured."""

    def axis(self, name: str) -> list[float]:
        """One of `AXES`."""
        values: list[float] = getattr(self, name)
        return values


@dataclass(frozen=True)
class ComparedRun:
    """One run of a comparison."""

    name: str
    """Name of its folder, or its path if two folders have the same name."""
    summary: Summary
    curves: dict[str, ComparedCurve]
    """By name: `training LOSS`, then `validation METRIC`."""
    scores: dict[tuple[str, str], Score]
    """By evaluation and metric."""


@dataclass(frozen=True)
class Comparison:
    """Several runs. Every list has one entry per run, in their order."""

    runs: list[ComparedRun]
    settings: dict[str, list[Any]]
    """Settings that differ, by dotted name; those that every run has come first."""
    environment: dict[str, list[Any]]
    """Machine, versions and dataset content, where they differ."""
    code: dict[str, list[str]] = field(default_factory=dict)
    """For each run whose code differs from that of the first run: the lines of a unified diff."""

    def curves(self, axis: str) -> dict[str, dict[str, ComparedCurve]]:
        """Curves by name, then by run, that at least one run has for this axis."""
        curves: dict[str, dict[str, ComparedCurve]] = {}
        for run in self.runs:
            for name, curve in run.curves.items():
                if curve.axis(axis):
                    curves.setdefault(name, {})[run.name] = curve
        return dict(sorted(curves.items(), key=lambda item: not item[0].startswith("training")))

    def scores(self) -> dict[tuple[str, str], list[Score | None]]:
        """The scores of all runs by (evaluation, metric)."""
        keys = dict.fromkeys(key for run in self.runs for key in run.scores)
        return {key: [run.scores.get(key) for run in self.runs] for key in keys}


def compare_runs(runs: Iterable[Run | str | Path]) -> Comparison:
    """Compare two or more runs. Failed and unfinished runs are compared as far as they got.

    Args:
        runs: Runs or their folders.

    Raises:
        RunError: There are fewer than two runs, one appears twice, one is not a run, or records are damaged.
    """
    opened = [run if isinstance(run, Run) else Run.open(run) for run in runs]
    paths = [run.path.resolve() for run in opened]
    if len(opened) < 2:
        raise RunError("name two runs or more to compare: clew compare runs/a runs/b")
    for path, run in zip(paths, opened, strict=True):
        if paths.count(path) > 1:
            raise RunError(f"{run.path} is named twice; name different runs")
    names = [run.name for run in opened]
    unique = len(set(names)) == len(names)
    return Comparison(
        [_compared_run(run, run.name if unique else str(run.path)) for run in opened],
        differing_values([dict(flatten_settings(run.config().data)) for run in opened]),
        differing_values([_environment_facts(run) for run in opened]),
        _code(opened, names if unique else [str(run.path) for run in opened]),
    )


def _code(runs: list[Run], names: list[str]) -> dict[str, list[str]]:
    with_code = [(run, name) for run, name in zip(runs, names, strict=True) if SavedCode.of_run(run) is not None]
    diffs = {name: code_differences(with_code[0][0], run) for run, name in with_code[1:]}
    return {name: lines for name, lines in diffs.items() if lines}


def _compared_run(run: Run, name: str) -> ComparedRun:
    scores = {
        (title, metric): Score.read(entry)
        for title, record in run.evaluations().items()
        for metric, entry in record["metrics"].items()
    }
    return ComparedRun(name, summarize(run), _curves(run), scores)


def _curves(run: Run) -> dict[str, ComparedCurve]:
    curves: dict[str, ComparedCurve] = {}
    clock, samples, joules = _Clock(), 0.0, energy_used(run)
    for record in run.history(run.main_stream):
        clock.add(record)
        if record["kind"] == "step":
            samples = record["samples"]
            prefix, values = "training", record["loss"]
        elif record["kind"] == "validation":
            prefix, values = "validation", record["metrics"]
        else:
            continue
        for name, value in values.items():
            curve = curves.setdefault(f"{prefix} {name}", ComparedCurve([], [], [], []))
            curve.values.append(value)
            curve.samples.append(samples)
            curve.seconds.append(clock.elapsed)
            if joules is not None:
                curve.joules.append(joules(record["time"]))
    return curves


class _Clock:
    """Training time: the time between a stop and a resume does not count."""

    def __init__(self) -> None:
        self.elapsed = self._before = 0.0
        self._started: float | None = None

    def add(self, record: Mapping[str, Any]) -> None:
        if record["kind"] == "start" or self._started is None:
            self._started, self._before = float(record["time"]), self.elapsed
        if record["kind"] in ("step", "validation"):
            self.elapsed = self._before + float(record["time"]) - self._started


def _environment_facts(run: Run) -> dict[str, Any]:
    environment = run.environment()
    plan = run.last("plan", run.main_stream)
    facts = {name: environment[name] for name in _ENVIRONMENT_KEYS if name in environment}
    facts |= {"device": plan["device"]} if plan else {}
    facts |= {f"{name} version": version for name, version in environment.get("packages", {}).items()}
    if run.dataset_file.exists():
        facts["dataset key"] = str(json.loads(run.dataset_file.read_text())["key"])[:16]
    return facts


def flatten_settings(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in data.items():
        if isinstance(value, Mapping) and value:
            yield from flatten_settings(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def differing_values(columns: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Names whose values are not the same in all columns."""
    names = dict.fromkeys(name for column in columns for name in column)
    values_by_name = {name: [column.get(name, ABSENT) for column in columns] for name in names}
    different = {name: values for name, values in values_by_name.items() if any(value != values[0] for value in values)}
    return dict(sorted(different.items(), key=lambda item: ABSENT in item[1]))


def setting_text(value: Any) -> str:
    """A setting as text."""
    if value is ABSENT:
        return "–"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
