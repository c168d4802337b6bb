"""Two results of the same kind side by side."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from clew.bench.scaling.study import KIND, ScalingResult
from clew.bench.workload import hepscore
from clew.errors import ConfigError

_SURE = 0.05
_MUST = ("recipe", "weak", "batch_size", "settings")
"""Of two studies of sizes, what must be the same."""


@dataclass(frozen=True)
class ComparedFigure:
    """One figure of both."""

    name: str
    a: float
    b: float
    p: float | None = None
    """Chance of so large a difference where there is none: Welch's test over trainings (parts of one training are no
    repeats), by Holm's rule for the number of rows; None where one of both has a single training."""
    n: tuple[int, int] = (1, 1)
    """Trainings of both."""
    within: float | None = None
    """How far epochs of a training differ, the larger of both: the deviation over the mean; None where not known."""

    @property
    def ratio(self) -> float:
        """B over A."""
        return self.b / self.a if self.a else math.inf

    @property
    def told(self) -> str:
        """Whether the difference means something."""
        if self.p is None:
            inside = f"; epochs of a training scatter by {self.within:.1%}" if self.within is not None else ""
            return f"no repeats, nobody can say{inside}"
        return f"p = {self.p:.2g}{', significant' if self.p < _SURE else ', within the noise'}"


@dataclass
class BenchComparison:
    """All figures that both have."""

    what: str
    rows: list[ComparedFigure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def json(self) -> str:
        """For other programs."""
        rows = [{**asdict(row), "ratio": row.ratio} for row in self.rows]
        return json.dumps({"what": self.what, "rows": rows, "notes": self.notes}, indent=1)


def compare(first: Path, second: Path) -> BenchComparison:
    """B against A.

    Raises:
        ConfigError: they are not of one kind, or not of the same work.
    """
    kinds = [_kind(path) for path in (first, second)]
    if kinds[0] != kinds[1]:
        raise ConfigError(f"{first} is {_A[kinds[0]]}, {second} {_A[kinds[1]]}: they cannot be compared")
    found = _studies(first, second) if kinds[0] == KIND else _summaries(first, second)
    found.rows = _corrected(found.rows)
    if any(row.p is not None for row in found.rows):
        found.notes.append("trainings of one result ran one after the other: p knows no difference of days or machines")
    return found


def _corrected(rows: list[ComparedFigure]) -> list[ComparedFigure]:
    """Chances for all rows together, by Holm: the smallest times their number, the next times one less, and so on."""
    order = sorted((row.p, place) for place, row in enumerate(rows) if row.p is not None)
    made, most = list(rows), 0.0
    for rank, (p, place) in enumerate(order):
        most = max(most, min(1.0, p * (len(order) - rank)))
        made[place] = replace(rows[place], p=most)
    return made


_A = {KIND: "a scaling study", "summary": "a workload's summary"}


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


def _studies(first: Path, second: Path) -> BenchComparison:
    a, b = ScalingResult.load(first), ScalingResult.load(second)
    for key in _MUST:
        _same(key, a.config.get(key), b.config.get(key), first, second)
    _same("the dataset's content", a.conditions["data"], b.conditions["data"], first, second)
    found = BenchComparison("events/s")
    for name in (s for s in a.strategies if s in b.strategies):
        for workers in (p for p in a.sizes(name) if p in b.sizes(name)):
            each = [[t.events_per_second for t in study.of(name, workers)] for study in (a, b)]
            over = " (oversubscribed)" if a.oversubscribed(name, workers) or b.oversubscribed(name, workers) else ""
            found.rows.append(_row(f"{name} on {workers}{over}", *each))
    if not found.rows:
        raise ConfigError(f"{first} and {second} have no strategy and size in common")
    return _conditions(found, a.conditions, b.conditions)


def _summaries(first: Path, second: Path) -> BenchComparison:
    a, b = hepscore.read_summary(first), hepscore.read_summary(second)
    for path, told in ((first, a.report.log), (second, b.report.log)):
        if told != "ok":
            raise ConfigError(f"{path}: that run did not go well ({told})")
    names = [path.name.removesuffix(hepscore.SUFFIX) for path in (first, second)]
    _same("workload", names[0], names[1], first, second)
    _same("data (bmkdata_checksum)", a.app.bmkdata_checksum, b.app.bmkdata_checksum, first, second)
    own = [_training(each) for each in (a, b)]
    sizes = [each.get("batch_size_per_device") for each in own]
    _same("batch_size_per_device", sizes[0], sizes[1], first, second)
    found = BenchComparison(names[0])
    for score in (name for name in a.report.wl_scores if name in b.report.wl_scores):
        values = (a.report.wl_scores[score], b.report.wl_scores[score])
        repeats = [each.get("throughput_per_seed", []) if score == "training" else [] for each in own]
        epochs = [each.get("throughput_per_epoch", [])[1:] if score == "training" else [] for each in own]
        counts = (max(1, len(repeats[0])), max(1, len(repeats[1])))
        found.rows.append(ComparedFigure(f"{score}, events/s", *values, _welch(*repeats), counts, _scatter(epochs)))
    found.notes += [] if a.app.bmk_checksum == b.app.bmk_checksum else ["not the same code of clew"]
    facts = [{**each.run_info.model_dump(), "devices": ", ".join(each.app.devices)} for each in (a, b)]
    for key in ("copies", "threads_per_copy", "devices", "precision"):
        one, other = (each.get(key) or "not told" for each in facts)
        found.notes += [] if one == other else [f"{key}: {one} and {other}"]
    return found


def _training(summary: hepscore.WorkloadSummary) -> dict[str, Any]:
    return dict((summary.report.model_extra or {}).get("training") or {})


def _row(name: str, a: list[float], b: list[float]) -> ComparedFigure:
    return ComparedFigure(name, sum(a) / len(a), sum(b) / len(b), _welch(a, b), (len(a), len(b)))


def _scatter(epochs: list[list[float]]) -> float | None:
    found = [statistics.stdev(each) / max(statistics.fmean(each), 1e-9) for each in epochs if len(each) > 1]
    return max(found, default=None)


def _welch(a: list[float], b: list[float]) -> float | None:
    if min(len(a), len(b)) < 2:
        return None
    from scipy.stats import ttest_ind

    p = float(ttest_ind(a, b, equal_var=False).pvalue)
    return p if math.isfinite(p) else None


def _same(what: str, a: Any, b: Any, first: Path, second: Path) -> None:
    if a != b:
        raise ConfigError(f"they are not alike: {what} is {a} in {first} and {b} in {second}")


def _conditions(found: BenchComparison, a: dict[str, Any], b: dict[str, Any]) -> BenchComparison:
    for key in ("cpu", "cores", "threads", "where", "commit"):
        if a.get(key) != b.get(key):
            found.notes.append(f"{key}: {a.get(key)} and {b.get(key)}")
    return found
