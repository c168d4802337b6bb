"""Compare two results of the same kind."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from clew.bench.scaling.results import KIND, ScalingResult
from clew.bench.workload import hepscore
from clew.errors import ConfigError

_SIGNIFICANT = 0.05
_MUST_MATCH = ("recipe", "weak", "batch_size", "settings")
"""Settings that must be equal in two scaling results."""


@dataclass(frozen=True)
class ComparedFigure:
    """One figure of both results."""

    name: str
    a: float
    b: float
    p: float | None = None
    """p-value of the difference: Welch's test over trainings, corrected by Holm's method for the number of rows. None
    if a result has only one training: epochs of one training are not independent repeats."""
    n: tuple[int, int] = (1, 1)
    """Number of trainings of both."""
    within: float | None = None
    """Relative standard deviation of the epochs of a training, the larger of both; None if not known."""

    @property
    def ratio(self) -> float:
        """B divided by A."""
        return self.b / self.a if self.a else math.inf

    @property
    def significance(self) -> str:
        """Text on whether the difference is significant."""
        if self.p is None:
            scatter = f"; epochs of a training scatter by {self.within:.1%}" if self.within is not None else ""
            return f"no repeats, significance not known{scatter}"
        return f"p = {self.p:.2g}{', significant' if self.p < _SIGNIFICANT else ', within the noise'}"


@dataclass
class BenchComparison:
    """All figures that both results have."""

    what: str
    rows: list[ComparedFigure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def json(self) -> str:
        """Return the comparison as JSON."""
        rows = [{**asdict(row), "ratio": row.ratio} for row in self.rows]
        return json.dumps({"what": self.what, "rows": rows, "notes": self.notes}, indent=1)


def compare(first: Path, second: Path) -> BenchComparison:
    """Compare B with A.

    Raises:
        ConfigError: The results are of different kinds, or of different work.
    """
    kinds = [_kind(path) for path in (first, second)]
    if kinds[0] != kinds[1]:
        raise ConfigError(f"{first} is {_KINDS[kinds[0]]}, {second} is {_KINDS[kinds[1]]}: they cannot be compared")
    comparison = _compare_scaling(first, second) if kinds[0] == KIND else _compare_summaries(first, second)
    comparison.rows = corrected(comparison.rows)
    if any(row.p is not None for row in comparison.rows):
        comparison.notes.append(
            "the trainings of a result ran on one day and machine: p does not include other effects"
        )
    return comparison


def corrected(rows: list[ComparedFigure]) -> list[ComparedFigure]:
    """Correct the p-values for the number of rows (Holm): the smallest times n, the next times n - 1, and so on."""
    order = sorted((row.p, index) for index, row in enumerate(rows) if row.p is not None)
    corrected, largest = list(rows), 0.0
    for rank, (p, index) in enumerate(order):
        largest = max(largest, min(1.0, p * (len(order) - rank)))
        corrected[index] = replace(rows[index], p=largest)
    return corrected


_KINDS = {KIND: "a scaling study", "summary": "a workload's summary"}


def _kind(path: Path) -> str:
    try:
        data = json.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: not JSON ({error})") from error
    if isinstance(data, dict) and data.get("kind") == KIND:
        return KIND
    if isinstance(data, dict) and "run_info" in data:
        return "summary"
    raise ConfigError(f"{path}: neither a scale.json nor a workload's {hepscore.SUFFIX.removeprefix('_')}")


def _compare_scaling(first: Path, second: Path) -> BenchComparison:
    a, b = ScalingResult.load(first), ScalingResult.load(second)
    for key in _MUST_MATCH:
        _require_same(key, a.config.get(key), b.config.get(key), first, second)
    _require_same("the dataset's content", a.conditions["data"], b.conditions["data"], first, second)
    comparison = BenchComparison("events/s")
    for name in (s for s in a.strategies if s in b.strategies):
        for workers in (p for p in a.sizes(name) if p in b.sizes(name)):
            speeds = [[run.events_per_second for run in result.runs_at(name, workers)] for result in (a, b)]
            mark = " (oversubscribed)" if a.oversubscribed(name, workers) or b.oversubscribed(name, workers) else ""
            comparison.rows.append(_row(f"{name} on {workers}{mark}", *speeds))
    if not comparison.rows:
        raise ConfigError(f"{first} and {second} have no strategy and size in common")
    return _note_conditions(comparison, a.conditions, b.conditions)


def _compare_summaries(first: Path, second: Path) -> BenchComparison:
    a, b = hepscore.read_summary(first), hepscore.read_summary(second)
    for path, log in ((first, a.report.log), (second, b.report.log)):
        if log != "ok":
            raise ConfigError(f"{path}: the run failed ({log})")
    names = [path.name.removesuffix(hepscore.SUFFIX) for path in (first, second)]
    _require_same("workload", names[0], names[1], first, second)
    _require_same("data (bmkdata_checksum)", a.app.bmkdata_checksum, b.app.bmkdata_checksum, first, second)
    trainings = [_training(summary) for summary in (a, b)]
    sizes = [training.get("batch_size_per_device") for training in trainings]
    _require_same("batch_size_per_device", sizes[0], sizes[1], first, second)
    comparison = BenchComparison(names[0])
    for score in (name for name in a.report.wl_scores if name in b.report.wl_scores):
        values = (a.report.wl_scores[score], b.report.wl_scores[score])
        is_training = score == "training"
        repeats = [training.get("throughput_per_seed", []) if is_training else [] for training in trainings]
        epochs = [training.get("throughput_per_epoch", [])[1:] if is_training else [] for training in trainings]
        counts = (max(1, len(repeats[0])), max(1, len(repeats[1])))
        comparison.rows.append(
            ComparedFigure(f"{score}, events/s", *values, _welch(*repeats), counts, _scatter(epochs))
        )
    comparison.notes += [] if a.app.bmk_checksum == b.app.bmk_checksum else ["different versions of clew"]
    facts = [{**each.run_info.model_dump(), "devices": ", ".join(each.app.devices)} for each in (a, b)]
    for key in ("copies", "threads_per_copy", "devices", "precision"):
        first_value, second_value = (each.get(key) or "unknown" for each in facts)
        comparison.notes += [] if first_value == second_value else [f"{key}: {first_value} and {second_value}"]
    return comparison


def _training(summary: hepscore.WorkloadSummary) -> dict[str, Any]:
    return dict((summary.report.model_extra or {}).get("training") or {})


def _row(name: str, a: list[float], b: list[float]) -> ComparedFigure:
    return ComparedFigure(name, sum(a) / len(a), sum(b) / len(b), _welch(a, b), (len(a), len(b)))


def _scatter(epochs: list[list[float]]) -> float | None:
    scatters = [statistics.stdev(each) / max(statistics.fmean(each), 1e-9) for each in epochs if len(each) > 1]
    return max(scatters, default=None)


def _welch(a: list[float], b: list[float]) -> float | None:
    if min(len(a), len(b)) < 2:
        return None
    from scipy.stats import ttest_ind

    p = float(ttest_ind(a, b, equal_var=False).pvalue)
    return p if math.isfinite(p) else None


def _require_same(name: str, a: Any, b: Any, first: Path, second: Path) -> None:
    if a != b:
        raise ConfigError(f"the results differ: {name} is {a} in {first} and {b} in {second}")


def _note_conditions(comparison: BenchComparison, a: dict[str, Any], b: dict[str, Any]) -> BenchComparison:
    for key in ("cpu", "cores", "threads", "where", "commit"):
        if a.get(key) != b.get(key):
            comparison.notes.append(f"{key}: {a.get(key)} and {b.get(key)}")
    return comparison
