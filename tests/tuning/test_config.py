"""The settings of a study: what a parameter and an objective may be, and what does not go together."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from clew.tuning.config import MAX_GRID, Objective, Parameter, TuneConfig

CHOICE = {"choice": [1, 2]}


def refused(message: str, **values: Any) -> None:
    with pytest.raises(ValidationError, match=message):
        TuneConfig.model_validate(values)


@pytest.mark.parametrize(
    ("parameter", "message"),
    [
        ({"log": [1, 2], "uniform": [1, 2]}, "choose one of"),
        ({"uniform": [1, 1]}, "below the highest"),
        ({"log": [1e-3, 1], "step": 0.1}, "takes no step"),
        ({"choice": [1, 2], "integer": True}, "neither integer nor step"),
        ({"uniform": [1, 9], "integer": True, "step": 0.5}, "whole numbers"),
        ({"log": [1, 9.5], "integer": True}, "whole numbers"),
        ({"uniform": [0, 1], "step": 0}, "greater than 0"),
        ({"choice": []}, "at least 1 item"),
        (5, "choose one of"),
        ({"categories": "all"}, "write {choice: \\[all\\]}"),
        ({"upper": 3}, "write {uniform: \\[LOWEST, 3\\]}"),
        ({"min": 2, "log": False}, "write {uniform: \\[2, HIGHEST\\]}"),
    ],
)
def test_a_parameter_that_is_not_one_range_is_refused(parameter: Any, message: str) -> None:
    refused(message, space={"a": parameter})


@pytest.mark.parametrize(
    "parameter",
    [
        {"uniform": [1, 9], "integer": True, "step": 2},
        {"log": [1, 9], "integer": True},
        {"uniform": [-1.5, 1.5]},
        {"choice": [None, "1e-3x", True]},
    ],
)
def test_ranges_and_choices_are_accepted(parameter: dict[str, Any]) -> None:
    made = Parameter.model_validate(parameter)
    assert made.bounds == (None if "choice" in parameter else tuple(next(iter(parameter.values()))))


def test_numbers_in_scientific_notation_are_numbers() -> None:
    """YAML reads 1e-3 as text. Words are not touched."""
    assert Parameter.model_validate({"choice": ["1e-3", "-2E5", "1e", "x1e3", 7]}).choice == (
        1e-3,
        -2e5,
        "1e",
        "x1e3",
        7,
    )


@pytest.mark.parametrize(
    ("when", "values", "active"),
    [
        ({}, {}, True),
        ({"a": 1}, {}, False),
        ({"a": 1}, {"a": 1}, True),
        ({"a": 1}, {"a": 2}, False),
        ({"a": [1, 2]}, {"a": 2}, True),
        ({"a": 1, "b": 2}, {"a": 1, "b": 3}, False),
        ({"a": 1, "b": 2}, {"a": 1, "b": 2}, True),
    ],
)
def test_a_parameter_is_used_if_all_its_conditions_hold(
    when: dict[str, Any], values: dict[str, Any], active: bool
) -> None:
    assert Parameter(choice=(1,), when=when).is_active(values) is active


@pytest.mark.parametrize(
    ("parameter", "size"),
    [
        (Parameter(choice=(1, 2, 3)), 3),
        (Parameter(uniform=(0, 5), integer=True), 6),
        (Parameter(uniform=(0, 5), step=2), 3),
        (Parameter(uniform=(0, 0.3), step=0.1), 4),
        (Parameter(uniform=(0, 1), step=0.3), 4),
    ],
)
def test_a_grid_has_as_many_points_as_steps_fit(parameter: Parameter, size: int) -> None:
    assert parameter.grid_size == size


def test_values_that_are_no_scalars_have_labels() -> None:
    layers = Parameter(choice=([64, 64], 3))
    assert layers.labels() == ["[64, 64]", 3] and layers.value("[64, 64]") == [64, 64]
    plain = Parameter(uniform=(0, 9))
    assert plain.value(5) == plain.label(5) == 5 and plain.labels() == [] and plain.label([1]) == [1]


@pytest.mark.parametrize("metric", ["loss", "val/", "/loss", "test/loss", "runseconds", ""])
def test_an_objective_is_of_a_validation_or_of_the_run(metric: str) -> None:
    with pytest.raises(ValidationError, match="write val/METRIC or run/"):
        Objective(metric=metric)


def test_an_objective_has_a_direction_and_a_validation_metric() -> None:
    assert (Objective(metric="val/loss").goal, Objective(metric="val/loss").validated) == ("minimize", "loss")
    chosen = Objective(metric="val/near", direction="minimize")
    assert chosen.goal == chosen.with_direction().direction == "minimize"
    assert Objective(metric="val/a/b", direction="maximize").validated == "a/b"
    assert Objective(metric="run/seconds").validated is None
    with pytest.raises(ValidationError, match="run/speed: choose from parameters"):
        Objective(metric="run/speed")


def test_objectives_are_a_list_with_directions() -> None:
    assert TuneConfig(objective="val/x", direction="maximize").objectives == (
        Objective(metric="val/x", direction="maximize"),
    )
    two = TuneConfig.model_validate({"objective": [{"metric": "val/loss"}, {"metric": "run/seconds"}]})
    assert [each.direction for each in two.objectives] == ["minimize", "minimize"]


def test_short_forms_are_names_and_counts() -> None:
    made = TuneConfig.model_validate({"sampler": "random", "pruner": "median", "folds": 4})
    assert (made.sampler.name, made.pruner.name, made.folds and made.folds.count) == ("random", "median", 4)
    refused("folds", folds=True)
    refused("folds.count", folds=1)
    refused("valid dictionary", space=[])
    with pytest.raises(ValidationError):
        TuneConfig.model_validate("tpe")


def test_a_pruner_needs_one_objective_of_the_validation() -> None:
    one, two = [{"metric": "val/loss"}], [{"metric": "val/loss"}, {"metric": "run/seconds"}]
    assert len(TuneConfig.model_validate({"objective": one, "pruner": "asha"}).objectives) == 1
    assert len(TuneConfig.model_validate({"objective": two}).objectives) == 2
    refused("pruning needs one objective", objective=two, pruner="asha")
    refused("pruning needs a val/ objective.* not run/seconds", objective="run/seconds", pruner="asha")


def test_packed_trials_have_one_rank() -> None:
    refused("ranks cannot be 2", packed=4, ranks=2)
    assert TuneConfig(packed=4, ranks=1).packed == 4 and TuneConfig(ranks=2).packed is None
    refused("packed", packed=0)


def test_a_grid_is_of_points() -> None:
    step, whole = {"uniform": [0, 1], "step": 0.5}, {"uniform": [1, 3], "integer": True}
    assert TuneConfig.model_validate({"sampler": "grid", "space": {"a": step, "b": whole, "c": CHOICE}})
    refused("space.a has none of them", sampler="grid", space={"a": {"uniform": [0, 1]}})
    refused("remove space.b.when", sampler="grid", space={"a": CHOICE, "b": {**CHOICE, "when": {"a": 1}}})
    most = {"uniform": [1, MAX_GRID], "integer": True}
    assert TuneConfig.model_validate({"sampler": "grid", "space": {"a": most}})
    refused(r"the grid has 2e\+05 points; at most 100,000", sampler="grid", space={"a": most, "b": CHOICE})
    assert TuneConfig.model_validate({"sampler": "random", "space": {"a": most, "b": CHOICE}})


def test_a_password_in_the_address_of_a_database_is_refused() -> None:
    refused("contains a password", storage="postgresql://ada:secret@db/studies")
    assert TuneConfig(storage="postgresql://ada@db/studies").storage == "postgresql://ada@db/studies"
