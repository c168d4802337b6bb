"""What is decided after a validation: the best weights, and the end of a training."""

from __future__ import annotations

from typing import Any

import pytest

from clew.errors import ConfigError, MissingMetricError
from clew.training.config import TrainConfig
from clew.training.early_stopping import MetricTracker, ValidationTracker
from clew.training.schedule import Schedule


def tracker(**settings: Any) -> ValidationTracker:
    config = TrainConfig.model_validate(settings)
    return ValidationTracker(config, Schedule(config, 100, 10))


def decisions(decide: ValidationTracker, metric: str, *values: float) -> list[tuple[bool, bool]]:
    """For each validation: are the weights the best, and does the training end?"""
    return [(best, bool(why)) for best, why in (decide.update({metric: value}) for value in values)]


@pytest.mark.parametrize(
    ("direction", "values", "best"),
    [
        ("minimize", (3.0, 2.0, 2.0, float("nan"), 1.0), [True, True, False, False, True]),
        ("maximize", (3.0, 2.0, 4.0, 4.0, 5.0), [True, False, True, False, True]),
    ],
)
def test_the_best_weights_are_those_of_the_best_value(direction: str, values: Any, best: list[bool]) -> None:
    decide = tracker(best={"metric": "score", "direction": direction})
    assert [each for each, _ in decisions(decide, "score", *values)] == best


def test_an_improvement_must_exceed_the_least_difference() -> None:
    values = MetricTracker("loss", "minimize", 0.5)
    assert [values.update({"loss": value}, "x") for value in (3.0, 2.5, 2.4, 1.8)] == [True, False, True, True]
    assert (values.best, values.since) == (-1.8, 0)


def test_a_value_to_maximize_must_exceed_the_best_by_the_least_difference() -> None:
    values = MetricTracker("near", "maximize", 0.5)
    assert [values.update({"near": value}, "x") for value in (1.0, 1.4, 1.6)] == [True, False, True]
    assert values.best == 1.6


def test_validations_without_a_number_count_as_not_better() -> None:
    decide = tracker(early_stopping={"patience": 2})
    nan = float("nan")
    assert decisions(decide, "loss", nan, nan) == [(False, False), (False, True)]
    assert decisions(decide, "loss", 1.0) == [(True, False)]


def test_patience_counts_validations_without_a_better_value() -> None:
    decide = tracker(early_stopping={"patience": 2})
    assert decisions(decide, "loss", 3.0, 4.0, 2.0, 2.5, 2.5) == [
        (True, False), (False, False), (True, False), (False, False), (False, True),
    ]  # fmt: skip
    assert decide.update({"loss": 2.5})[1] == "loss has not improved in 2 validations"


def test_patience_follows_the_direction_of_the_best_metric() -> None:
    decide = tracker(best={"metric": "score", "direction": "maximize"}, early_stopping={"patience": 1})
    assert decisions(decide, "score", 1.0, 2.0, 1.5) == [(True, False), (True, False), (False, True)]


def test_patience_with_a_metric_of_its_own() -> None:
    settings = {"patience": 1, "metric": "score", "direction": "maximize"}
    decide = tracker(early_stopping=settings)
    values = ({"loss": 1.0, "score": 1.0}, {"loss": 2.0, "score": 2.0}, {"loss": 0.5, "score": 2.0})
    assert [bool(decide.update(each)[1]) for each in values] == [False, False, True]
    with pytest.raises(ConfigError, match=r"early_stopping\.direction"):
        tracker(early_stopping={"patience": 1, "metric": "score"}).update({"loss": 1.0, "score": 1.0})


@pytest.mark.parametrize(("goal", "end"), [("minimize", [False, True, True]), ("maximize", [True, True, False])])
def test_a_target_ends_a_training_without_patience(goal: str, end: list[bool]) -> None:
    decide = tracker(target={"metric": "x", "value": 2.0, "direction": goal})
    assert [bool(decide.update({"loss": 1.0, "x": value})[1]) for value in (3.0, 2.0, 1.0)] == end
    with pytest.raises(MissingMetricError, match=r"train\.target\.metric"):
        decide.update({"loss": 1.0})


def test_a_resumed_tracker_decides_as_the_first() -> None:
    settings: dict[str, Any] = {"early_stopping": {"patience": 3}, "schedule": {"name": "plateau", "epochs": 2}}
    first = tracker(**settings)
    decisions(first, "loss", 3.0, 4.0, 4.0)
    second = tracker(**settings)
    second.restore(first.state())
    assert second.state() == first.state()
    assert first.state() == {"reduced": 1, "best": [-3.0, 2], "plateau": [-3.0, 0], "early": [-3.0, 2]}
    assert decisions(second, "loss", 3.5) == [(False, True)]
