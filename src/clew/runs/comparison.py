"""Runs side by side, as data: what was set differently, how they got on, how well they ended."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clew.errors import RunError
from clew.runs.folder import Run
from clew.runs.resource_usage import energy
from clew.runs.summary import Summary, summarize

ABSENT = object()
"""In place of a setting that a run does not have."""
AXES = {"samples": "samples", "seconds": "time [s]", "joules": "energy [J]"}
"""What curves run over, and what it is called on an axis."""
_SURROUNDINGS = ("host", "cpu", "cores_allowed", "memory_gb", "platform", "python", "clew", "commit")


@dataclass(frozen=True)
class Curve:
    """A value over a training; the axes have its length. A gap is None."""

    values: list[float | None]
    samples: list[float]
    """Seen so far, over all ranks."""
    seconds: list[float]
    """Since the start, without the time in which a stopped run waited to be resumed."""
    joules: list[float]
    """Used so far, by what the ranks' monitors tell; empty where the hardware does not."""

    def axis(self, name: str) -> list[float]:
        """One of `AXES`."""
        found: list[float] = getattr(self, name)
        return found


@dataclass(frozen=True)
class Score:
    """A metric of an evaluation, with its statistical error where there is one."""

    value: float | None
    error: float | None


@dataclass(frozen=True)
class Side:
    """One of the runs."""

    name: str
    """That of its folder, or the path where two folders have the same name."""
    summary: Summary
    curves: dict[str, Curve]
    """`training loss` (a curve for each loss), then `validation METRIC`."""
    scores: dict[tuple[str, str], Score]
    """By evaluation and metric."""


@dataclass(frozen=True)
class Comparison:
    """Several runs. Lists have an entry for each, in the order they were given."""

    sides: list[Side]
    settings: dict[str, list[Any]]
    """Those that differ, by their dotted names; first those that every run has."""
    surroundings: dict[str, list[Any]]
    """What they ran on and with (machine, versions, content of the dataset), where it differs."""

    def curves(self, axis: str) -> dict[str, dict[str, Curve]]:
        """By name, then by run: those that at least one run has along this axis."""
        found: dict[str, dict[str, Curve]] = {}
        for side in self.sides:
            for name, curve in side.curves.items():
                if curve.axis(axis):
                    found.setdefault(name, {})[side.name] = curve
        return dict(sorted(found.items(), key=lambda item: not item[0].startswith("training")))

    def scores(self) -> dict[tuple[str, str], list[Score | None]]:
        """Every metric of every evaluation, by run."""
        keys = dict.fromkeys(key for side in self.sides for key in side.scores)
        return {key: [side.scores.get(key) for side in self.sides] for key in keys}


def compare(runs: Iterable[Run | str | Path]) -> Comparison:
    """Two or more runs, in whatever state: failed ones and those being written are compared as far as they got.

    Raises:
        RunError: fewer than two, one twice, or something that is no run; or records are damaged.
    """
    opened = [run if isinstance(run, Run) else Run.open(run) for run in runs]
    places = [run.path.resolve() for run in opened]
    if len(opened) < 2:
        raise RunError("name two runs or more to compare: clew compare runs/a runs/b")
    for place, run in zip(places, opened, strict=True):
        if places.count(place) > 1:
            raise RunError(f"{run.path} is named twice; a run is not compared with itself")
    names = [run.name for run in opened]
    unique = len(set(names)) == len(names)
    return Comparison(
        [_side(run, run.name if unique else str(run.path)) for run in opened],
        differing([dict(flat(run.config().data)) for run in opened]),
        differing([_surroundings(run) for run in opened]),
    )


def _side(run: Run, name: str) -> Side:
    scores = {
        (title, metric): Score(entry["value"], entry["error"])
        for title, record in run.evaluations().items()
        for metric, entry in record["metrics"].items()
    }
    return Side(name, summarize(run), _curves(run), scores)


def _curves(run: Run) -> dict[str, Curve]:
    found: dict[str, Curve] = {}
    clock, samples, joules = _Clock(), 0.0, energy(run)
    for record in run.history(run.lead):
        clock.see(record)
        if record["kind"] == "step":
            samples = record["samples"]
            prefix, values = "training", record["loss"]
        elif record["kind"] == "validation":
            prefix, values = "validation", record["metrics"]
        else:
            continue
        for name, value in values.items():
            curve = found.setdefault(f"{prefix} {name}", Curve([], [], [], []))
            curve.values.append(value)
            curve.samples.append(samples)
            curve.seconds.append(clock.elapsed)
            if joules is not None:
                curve.joules.append(joules(record["time"]))
    return found


class _Clock:
    """Time at work: every start goes on from where the records that count had got to."""

    def __init__(self) -> None:
        self.elapsed = self._before = 0.0
        self._begun: float | None = None

    def see(self, record: Mapping[str, Any]) -> None:
        if record["kind"] == "start" or self._begun is None:
            self._begun, self._before = float(record["time"]), self.elapsed
        if record["kind"] in ("step", "validation"):
            self.elapsed = self._before + float(record["time"]) - self._begun


def _surroundings(run: Run) -> dict[str, Any]:
    environment = run.environment()
    plan = run.last("plan", run.lead)
    found = {name: environment[name] for name in _SURROUNDINGS if name in environment}
    found |= {"device": plan["device"]} if plan else {}
    found |= {f"{name} version": version for name, version in environment.get("packages", {}).items()}
    if run.dataset_file.exists():
        found["dataset key"] = str(json.loads(run.dataset_file.read_text())["key"])[:16]
    return found


def flat(data: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in data.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def differing(sides: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Names whose values are not the same everywhere."""
    names = dict.fromkeys(name for side in sides for name in side)
    found = {name: [side.get(name, ABSENT) for side in sides] for name in names}
    kept = {name: values for name, values in found.items() if any(value != values[0] for value in values)}
    return dict(sorted(kept.items(), key=lambda item: ABSENT in item[1]))


def text(value: Any) -> str:
    """A setting for people."""
    if value is ABSENT:
        return "–"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
