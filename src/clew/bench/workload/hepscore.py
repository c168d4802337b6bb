"""The form in which hep-workloads write what they measured, and the score that HEPscore makes of several.

`SCHEMA` is shipped beside this file as `summary.schema.json`; every summary is checked against the same models before
it is written.
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
    """More than what is named here may be there."""

    model_config = ConfigDict(extra="allow", populate_by_name=True)


class SummaryRunInfo(_Open):
    """How it was run."""

    copies: Count
    threads_per_copy: Count
    events_per_thread: Count


class ScoreStats(_Open):
    """What a score is made of: one value a copy."""

    count: Annotated[int, Field(ge=0)]
    min: NonNegative
    max: NonNegative
    avg: NonNegative
    median: NonNegative


class SummaryReport(_Open):
    """Scores, of which a higher one is better; `log` is `ok`, or says what went wrong."""

    wl_scores: Annotated[dict[str, NonNegative], Field(alias="wl-scores", min_length=1)]
    wl_stats: Annotated[dict[str, ScoreStats], Field(alias="wl-stats")] = {}
    log: str


class SummaryApp(_Open):
    """What was run."""

    version: str
    description: str
    bmk_checksum: str
    bmkdata_checksum: str
    containment: str
    devices: list[str] = []


class WorkloadSummary(_Open):
    """`<name>_summary.json`."""

    run_info: SummaryRunInfo
    report: SummaryReport
    app: SummaryApp


def summary_schema() -> dict[str, Any]:
    """The form as a JSON schema."""
    told = WorkloadSummary.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **told}


def score_stats(values: Sequence[float]) -> dict[str, float]:
    """Of one score over copies."""
    if not values:
        return {"count": 0, "min": 0.0, "max": 0.0, "avg": 0.0, "median": 0.0}
    rounded = [round(value, 4) for value in values]
    middle = {"avg": statistics.fmean(rounded), "median": statistics.median(rounded)}
    return {"count": len(values), "min": min(rounded), "max": max(rounded), **middle}


def write_summary(path: Path, summary: Mapping[str, Any]) -> None:
    """Check a summary and write it, whole or not at all."""
    WorkloadSummary.model_validate(summary)
    write_text(path, json.dumps(summary, indent=1, allow_nan=False) + "\n")


def read_summary(path: Path) -> WorkloadSummary:
    """A summary from a file.

    Raises:
        ConfigError: it has not the form.
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
    """A workload on the reference machine."""

    ref_scores: dict[str, Annotated[float, Field(gt=0)]]
    weight: Annotated[float, Field(gt=0)] = 1.0


class Reference(Section):
    """The reference machine: what every workload scored there."""

    name: str
    scaling: Annotated[float, Field(gt=0)] = 1.0
    benchmarks: dict[str, ReferenceWorkload]


PUBLISHED = Reference(
    name="Xeon Gold 6148, 40 cores (published: 3.0 events/s, 1,100 events, batch 16)",
    benchmarks={"particleflow": ReferenceWorkload(ref_scores={"training": 3.0})},
)


@dataclass
class NodeScore:
    """What comes of several summaries."""

    value: float
    reference: str
    workloads: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def load_reference(path: Path | None) -> Reference:
    """A reference machine from a YAML or JSON file, or from a summary measured on it.

    Raises:
        ConfigError: it is neither.
    """
    if path is None:
        return PUBLISHED
    if path.name.endswith(SUFFIX):
        scores = read_summary(path).report.wl_scores
        workload = ReferenceWorkload(ref_scores=scores)
        return Reference(name=str(path), benchmarks={path.name.removesuffix(SUFFIX): workload})
    return validate(Reference, read_document(path))


def node_score(paths: Sequence[Path], against: Reference) -> NodeScore:
    """As HEPscore does: each score over the reference's, their geometric mean, the median of the repetitions of a
    workload, and the weighted geometric mean of workloads times a scale.

    Raises:
        ConfigError: a summary failed, or the reference lacks a workload or a score.
    """
    runs: dict[str, list[float]] = {}
    for path in paths:
        name = path.name.removesuffix(SUFFIX)
        runs.setdefault(name, []).append(_relative(path, name, against))
    if not runs:
        raise ConfigError(f"no {SUFFIX.removeprefix('_')} file was given")
    medians = {name: statistics.median(values) for name, values in runs.items()}
    weights = {name: against.benchmarks[name].weight for name in medians}
    total = sum(weights[name] * math.log(value) for name, value in medians.items()) / sum(weights.values())
    found = NodeScore(against.scaling * math.exp(total), against.name)
    for name, values in runs.items():
        found.workloads[name] = {"median": medians[name], "repetitions": values, "weight": weights[name]}
        if len(values) < REPETITIONS:
            found.notes.append(f"{name}: {len(values)} of {REPETITIONS} repetitions; HEPscore takes the median of 3")
    lacking = sorted(against.benchmarks.keys() - runs.keys())
    if lacking:
        found.notes.append(f"left out: {', '.join(lacking)}")
    return found


def _relative(path: Path, name: str, against: Reference) -> float:
    """The geometric mean of a summary's scores, each over the reference's."""
    summary = read_summary(path)
    if summary.report.log != "ok":
        raise ConfigError(f"{path}: that run did not go well ({summary.report.log}); leave it out or run it again")
    known = against.benchmarks.get(name)
    if known is None:
        raise ConfigError(f"{path}: the reference has no workload '{name}'; it has {', '.join(against.benchmarks)}")
    lacking = known.ref_scores.keys() - summary.report.wl_scores.keys()
    if lacking:
        raise ConfigError(f"{path}: no score '{sorted(lacking)[0]}', which the reference has")
    ratios = [summary.report.wl_scores[each] / value for each, value in known.ref_scores.items()]
    if min(ratios) <= 0:
        raise ConfigError(f"{path}: a score is 0")
    return math.exp(statistics.fmean(map(math.log, ratios)))
