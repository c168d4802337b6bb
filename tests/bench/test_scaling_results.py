"""The figures of a scaling study: means over trainings, and what follows from them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from clew.bench.scaling.measurement import PARTS, ScalingRun
from clew.bench.scaling.results import ScalingResult
from clew.errors import ConfigError


def trained(workers: int, seconds: float, **more: Any) -> ScalingRun:
    """A training of 200 events."""
    blocks = [(100, seconds, 0.0, 0.0), (100, seconds, 0.0, 0.0)]
    return ScalingRun("allreduce", workers, f"runs/{workers}", blocks=blocks, **more)


def study(*trainings: ScalingRun) -> ScalingResult:
    return ScalingResult({"weak": False}, {}, list(trainings))


def test_figures_are_means_over_trainings() -> None:
    shares, slow_shares = dict.fromkeys(PARTS, 0.25), dict.fromkeys(PARTS, 0.75)
    result = study(
        trained(2, 10.0, filling=1.0, shares=shares, loading={"mean": 2.0}, validations=[(1, 1, 9.0), (2, 2, 0.5)]),
        trained(2, 5.0, filling=3.0, shares=slow_shares, loading={"mean": 4.0}, validations=[(1, 1, 1.0)], seed=1),
        trained(2, 5.0, seed=2),
        trained(4, 4.0, oversubscribed=True),
        ScalingRun("allreduce", 8, "runs/8", message="failed"),
    )
    two, four = result.rows()
    assert two == {
        "strategy": "allreduce",
        "workers": 2,
        "oversubscribed": False,
        "trainings": 3,
        "events_per_second": round((10 + 20 + 20) / 3, 3),
        "each": [10.0, 20.0, 20.0],
        "speedup": 2.0,
        "efficiency": 1.0,
        "filling_seconds": 2.0,
        "loading_seconds_per_1000_events": 3.0,
        "loss": 0.75,
        "shares": dict.fromkeys(PARTS, 0.5),
    }
    assert (four["workers"], four["oversubscribed"], four["each"], four["trainings"]) == (4, True, [25.0], 1)
    assert (four["speedup"], four["efficiency"]) == (3.0, 0.75)
    assert [four[name] for name in ("loss", "filling_seconds", "loading_seconds_per_1000_events")] == [None] * 3
    assert result.derived() == {"sizes": [two, four]}


def test_figures_are_rounded_for_people() -> None:
    row = study(trained(1, 3.0), trained(3, 7.0)).rows()[1]
    assert (row["events_per_second"], row["each"], row["speedup"], row["efficiency"]) == (
        14.286,
        [14.286],
        0.4286,
        0.1429,
    )


def test_strategies_come_in_the_order_of_their_trainings() -> None:
    other = dataclasses.replace(trained(1, 1.0), strategy="zero")
    result = study(other, trained(4, 1.0), trained(1, 1.0), dataclasses.replace(other, workers=2, blocks=[]))
    assert result.strategies == ["zero", "allreduce"]
    assert (result.sizes("zero"), result.sizes("allreduce")) == ([1], [1, 4])
    assert [run.workers for run in result.runs_at("allreduce", 4)] == [4] and result.runs_at("zero", 2) == []
    assert not result.weak and ScalingResult({"weak": True}, {}).weak


@pytest.mark.parametrize("change", [{"kind": "workload"}, {"format": 2}, {"trainings": [{"no": 1}]}])
def test_other_results_are_refused(change: dict[str, Any], tmp_path: Path) -> None:
    study(trained(1, 3.0)).save(tmp_path / "a.json")
    (tmp_path / "b.json").write_text(json.dumps({**json.loads((tmp_path / "a.json").read_text()), **change}))
    assert ScalingResult.load(tmp_path / "a.json").trainings == [trained(1, 3.0)]
    with pytest.raises(ConfigError, match="not a result of clew bench scale"):
        ScalingResult.load(tmp_path / "b.json")
