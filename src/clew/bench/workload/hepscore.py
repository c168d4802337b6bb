"""The summary format of hep-workloads, and the score that HEPscore computes from several summaries.

`SCHEMA` is the path of `summary.schema.json` in this folder. Every summary is checked against the same models before it
is written.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from clew.core.config import Section, read_document, validate
from clew.core.files import write_text
from clew.errors import ConfigError

SCHEMA = Path(__file__).with_name("summary.schema.json")
SUFFIX = "_summary.json"
REPETITIONS = 3
Count = Annotated[int, Field(ge=1)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Open(BaseModel):
    """A model that allows more fields."""

    model_config = ConfigDict(extra="allow", populate_by_name=True)


class SummaryRunInfo(_Open):
    """How the workload was run."""

    copies: Count
    threads_per_copy: Count
    events_per_thread: Count


class ScoreStats(_Open):
    """Statistics of a score over copies."""

    count: Annotated[int, Field(ge=0)]
    min: NonNegative
    max: NonNegative
    avg: NonNegative
    median: NonNegative


class SummaryReport(_Open):
    """Scores, higher is better. `log` is `ok` or an error message."""

    wl_scores: Annotated[dict[str, NonNegative], Field(alias="wl-scores", min_length=1)]
    wl_stats: Annotated[dict[str, ScoreStats], Field(alias="wl-stats")] = {}
    log: str


class SummaryApp(_Open):
    """The workload."""

    version: str
    description: str
    bmk_checksum: str
    bmkdata_checksum: str
    containment: str
    devices: list[str] = []


class WorkloadSummary(_Open):
    """The content of `<name>_summary.json`."""

    run_info: SummaryRunInfo
    report: SummaryReport
    app: SummaryApp


def summary_schema() -> dict[str, Any]:
    """Return the JSON schema of a summary."""
    schema = WorkloadSummary.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def score_stats(values: Sequence[float]) -> dict[str, float]:
    """Return the statistics of one score over copies."""
    if not values:
        return {"count": 0, "min": 0.0, "max": 0.0, "avg": 0.0, "median": 0.0}
    rounded = [round(value, 4) for value in values]
    middle = {"avg": statistics.fmean(rounded), "median": statistics.median(rounded)}
    return {"count": len(values), "min": min(rounded), "max": max(rounded), **middle}


def write_summary(path: Path, summary: Mapping[str, Any]) -> None:
    """Check a summary and write it atomically."""
    WorkloadSummary.model_validate(summary)
    write_text(path, json.dumps(summary, indent=1, allow_nan=False) + "\n")


def read_summary(path: Path) -> WorkloadSummary:
    """Read a summary.

    Raises:
        ConfigError: The file cannot be read or has another format.
    """
    try:
        return WorkloadSummary.model_validate_json(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise ConfigError(f"{path}: not a summary of a workload: {where}: {first['msg']}") from error


class ReferenceWorkload(Section):
    """The scores of a workload on the reference machine."""

    ref_scores: dict[str, Annotated[float, Field(gt=0)]]
    weight: Annotated[float, Field(gt=0)] = 1.0


class Reference(Section):
    """The reference machine and the scores of all workloads on it."""

    name: str
    scaling: Annotated[float, Field(gt=0)] = 1.0
    benchmarks: dict[str, ReferenceWorkload]


PUBLISHED = Reference(
    name="Xeon Gold 6148, 40 cores (published: 3.0 events/s, 1,100 events, batch 16)",
    benchmarks={"particleflow": ReferenceWorkload(ref_scores={"training": 3.0})},
)


@dataclass
class NodeScore:
    """The score of a node."""

    value: float
    reference: str
    workloads: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def load_reference(path: Path | None) -> Reference:
    """Read a reference machine from a YAML or JSON file, or from a summary measured on it.

    Raises:
        ConfigError: The file has another format.
    """
    if path is None:
        return PUBLISHED
    if path.name.endswith(SUFFIX):
        scores = read_summary(path).report.wl_scores
        workload = ReferenceWorkload(ref_scores=scores)
        return Reference(name=str(path), benchmarks={path.name.removesuffix(SUFFIX): workload})
    document = read_document(path)
    if "benchmarks" not in document.data:
        raise ConfigError(f"--reference {path}: neither a summary (*{SUFFIX}) nor a file with name and benchmarks")
    return validate(Reference, document)


def node_score(paths: Sequence[Path], against: Reference) -> NodeScore:
    """Compute the score of a node as HEPscore does.

    Each score is divided by that of the reference. The geometric mean counts for a run, the median of the repetitions
    for a workload, and the weighted geometric mean of workloads, times a scale, for the node.

    Raises:
        ConfigError: A summary failed, repetitions had other settings, or the reference lacks a workload or a score.
    """
    runs: dict[str, list[float]] = {}
    first: dict[str, Path] = {}
    for path in paths:
        name = path.name.removesuffix(SUFFIX)
        _check_repetition(first.setdefault(name, path), path)
        runs.setdefault(name, []).append(_relative(path, name, against))
    if not runs:
        raise ConfigError(f"no {SUFFIX.removeprefix('_')} file was given")
    medians = {name: statistics.median(values) for name, values in runs.items()}
    weights = {name: against.benchmarks[name].weight for name in medians}
    total = sum(weights[name] * math.log(value) for name, value in medians.items()) / sum(weights.values())
    score = NodeScore(against.scaling * math.exp(total), against.name)
    for name, values in runs.items():
        score.workloads[name] = {"median": medians[name], "repetitions": values, "weight": weights[name]}
        if len(values) < REPETITIONS:
            score.notes.append(f"{name}: {len(values)} of {REPETITIONS} repetitions; HEPscore takes the median of 3")
    missing = sorted(against.benchmarks.keys() - runs.keys())
    if missing:
        score.notes.append(f"not included: {', '.join(missing)}")
    return score


def _check_repetition(first: Path, path: Path) -> None:
    """Refuse results of other settings: a median over them means nothing. Seeds may differ."""
    ours, theirs = (read_summary(each).run_info.model_dump() for each in (first, path))
    for key in sorted((ours.keys() | theirs.keys()) - {"seed"}):
        if ours.get(key) != theirs.get(key):
            raise ConfigError(
                f"not repetitions of one measurement: {key} is {ours.get(key)} in {first} and {theirs.get(key)} in "
                f"{path}; score them one by one"
            )


def _relative(path: Path, name: str, against: Reference) -> float:
    """Return the geometric mean of the scores of a summary, each divided by that of the reference."""
    summary = read_summary(path)
    if summary.report.log != "ok":
        raise ConfigError(f"{path}: the run failed ({summary.report.log}); remove it or run it again")
    workload = against.benchmarks.get(name)
    if workload is None:
        raise ConfigError(f"{path}: the reference has no workload '{name}'; it has {', '.join(against.benchmarks)}")
    missing = workload.ref_scores.keys() - summary.report.wl_scores.keys()
    if missing:
        raise ConfigError(f"{path}: no score '{sorted(missing)[0]}', which the reference has")
    ratios = [summary.report.wl_scores[key] / value for key, value in workload.ref_scores.items()]
    if min(ratios) <= 0:
        raise ConfigError(f"{path}: a score is 0")
    return math.exp(statistics.fmean(map(math.log, ratios)))
