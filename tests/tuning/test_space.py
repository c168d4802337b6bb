"""What can be searched, and what is refused before the first trial."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest

from clew import Dataset, Run
from clew.errors import ConfigError
from clew.tuning import space
from clew.tuning.config import Parameter, TuneConfig
from tests.tuning import template


def config(**tune: Any) -> TuneConfig:
    return TuneConfig.model_validate({"space": {"train.epochs": {"choice": [1, 2]}}, **tune})


def test_short_forms_and_numbers_as_yaml_reads_them() -> None:
    study_config = config(
        sampler="gp", pruner="asha", folds=3, space={"a": {"log": ["1e-5", "1e-1"]}, "b": {"choice": ["1e-3"]}}
    )
    assert (study_config.sampler.name, study_config.pruner.name, study_config.folds and study_config.folds.count) == (
        "gp",
        "asha",
        3,
    )
    assert study_config.space["a"].log == (1e-5, 1e-1)
    assert study_config.space["b"].choice == (1e-3,)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"space": {"a": {}}}, "one of uniform, log, choice"),
        ({"space": {"a": {"low": 1, "high": 9, "log": True}}}, "uniform, log, choice: write {log: \\[1, 9\\]}"),
        ({"space": {"a": {"minval": 0, "maxval": 1}}}, "write {uniform: \\[0, 1\\]}"),
        ({"space": {"a": {"type": "categorical", "values": ["x", 2]}}}, "write {choice: \\[x, 2\\]}"),
        ({"space": {"a": {"log": [0, 1]}}}, "above 0"),
        ({"space": {"a": {"uniform": [2, 1]}}}, "below the highest"),
        ({"space": {"a": {"uniform": [0.5, 3], "integer": True}}}, "whole numbers"),
        ({"space": {"a": {"choice": [1], "step": 2}}}, "choice takes neither"),
        ({"space": {"a": {"choice": [1], "when": {"b": 1}}}}, "'b' is not in the space"),
        ({"objective": "loss"}, "write val/METRIC"),
        ({"objective": "run/size"}, "choose from parameters"),
        ({"objective": "run/seconds", "pruner": "median"}, "needs a val/ objective"),
        (
            {"objective": [{"metric": "val/loss"}, {"metric": "val/mae"}], "pruner": "asha"},
            "pruning needs one objective",
        ),
        ({"sampler": "grid", "space": {"a": {"log": [1, 2]}}}, "a grid needs choices"),
        ({"sampler": "tpee"}, "sampler"),
    ],
)
def test_invalid_settings_of_a_study_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config(**values)


def test_conditions_come_before_what_depends_on_them() -> None:
    names = {
        "momentum": Parameter(uniform=(0, 1), when={"name": "sgd"}),
        "name": Parameter(choice=("adam", "sgd"), when={"deep": [True]}),
        "deep": Parameter(choice=(True, False)),
    }
    assert space.dependency_order(names) == ["deep", "name", "momentum"]
    with pytest.raises(ConfigError, match="cycle"):
        space.dependency_order({**names, "deep": Parameter(choice=(True,), when={"momentum": 0})})


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"name": "sgd", "momentum": 0.5}, {"name": "sgd", "momentum": 0.5}),
        ({"name": "adam"}, {"name": "adam"}),
    ],
)
def test_a_parameter_is_suggested_where_its_condition_holds(
    parameters: dict[str, Any], expected: dict[str, Any]
) -> None:
    names = {"momentum": Parameter(uniform=(0, 1), when={"name": "sgd"}), "name": Parameter(choice=("adam", "sgd"))}
    assert space.suggest_values(optuna.trial.FixedTrial(parameters), names) == expected


def test_choices_may_be_lists() -> None:
    layers = Parameter(choice=([64, 64], [128], None, True))
    assert layers.labels() == ["[64, 64]", "[128]", None, True]
    assert [layers.value(each) for each in layers.labels()] == [[64, 64], [128], None, True]


def test_a_grid_has_every_combination() -> None:
    values = space.grid_values(
        {"a": Parameter(uniform=(1, 5), integer=True, step=2), "b": Parameter(uniform=(0, 1), step=0.25)}
    )
    assert values == {"a": [1, 3, 5], "b": [0.0, 0.25, 0.5, 0.75, 1.0]}


def test_a_grid_has_its_last_point_although_steps_are_rounded() -> None:
    """0.3 / 0.1 is less than 3 in floating point."""
    values = space.grid_values({"a": Parameter(uniform=(0, 0.3), step=0.1), "b": Parameter(uniform=(0, 1), step=0.3)})
    assert values["a"] == pytest.approx([0.0, 0.1, 0.2, 0.3])
    assert values["b"] == pytest.approx([0.0, 0.3, 0.6, 0.9])


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            {"train.optimiser.lr": {"log": [1e-4, 1e-1]}},
            "unknown key 'train.optimiser'; did you mean 'train.optimizer'",
        ),
        ({"train.optimizer.lr": {"uniform": [-1, 1]}}, "train.optimizer.lr: input should be greater than 0"),
        ({"wide": {"uniform": [2, 8]}}, "add `integer: true`"),
        ({"wide": {"choice": [2, "many"]}}, r"wide: .* \(given: 'many'\)"),
        ({"train.epochs.more": {"choice": [1]}}, "train.epochs is a single value"),
        ({"prepare.seed": {"choice": [1, 2]}}, "a trial only trains"),
        ({}, "tune.space is empty"),
    ],
)
def test_a_space_that_the_settings_cannot_take_is_reported(flat: Dataset, names: dict[str, Any], message: str) -> None:
    settings = template(flat, tune={"space": names})
    with pytest.raises(ConfigError, match=message):
        space.check_space(settings, settings.tune or TuneConfig(), {})


def test_settings_of_the_prepared_data_cannot_be_searched(flat: Dataset) -> None:
    settings = template(flat, tune={"space": {"wide": {"choice": [2, 4]}}})
    with pytest.raises(ConfigError, match="the dataset was prepared with it"):
        space.check_space(settings, settings.tune or TuneConfig(), {"wide": 4})


def test_a_value_is_tried_under_its_condition(flat: Dataset) -> None:
    names = {"after": {"choice": [2, 99]}, "wide": {"choice": [3], "when": {"after": 2}}}
    settings = template(flat, tune={"space": names}, wide=4)
    space.check_space(settings, settings.tune or TuneConfig(), {})


@pytest.mark.parametrize(
    ("parameter", "suggested"),
    [
        (Parameter(uniform=(1, 9)), ("suggest_float", 1.0, 9.0, None, False)),
        (Parameter(uniform=(0, 1), step=0.25), ("suggest_float", 0.0, 1.0, 0.25, False)),
        (Parameter(log=(1e-3, 1)), ("suggest_float", 1e-3, 1.0, None, True)),
        (Parameter(uniform=(1, 9), integer=True), ("suggest_int", 1, 9, 1, False)),
        (Parameter(uniform=(1, 9), integer=True, step=4), ("suggest_int", 1, 9, 4, False)),
        (Parameter(log=(1, 64), integer=True), ("suggest_int", 1, 64, 1, True)),
    ],
)
def test_optuna_proposes_numbers_of_the_range(parameter: Parameter, suggested: tuple[Any, ...]) -> None:
    trial = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1)).ask()
    values = space.suggest_values(trial, {"x": parameter})
    kind, low, high, step, log = suggested
    drawn: Any = trial.distributions["x"]
    assert (type(drawn).__name__, drawn.low, drawn.high, drawn.step, drawn.log) == (
        "IntDistribution" if kind == "suggest_int" else "FloatDistribution", low, high, step, log,
    )  # fmt: skip
    assert type(values["x"]) is (int if kind == "suggest_int" else float) and low <= values["x"] <= high
    assert values["x"] == trial.params["x"]


def test_parameters_of_optuna_are_read_as_settings() -> None:
    names = {"a": Parameter(choice=([1, 2], [3])), "b": Parameter(uniform=(0, 1)), "c": Parameter(choice=(1,))}
    assert space.settings_from_params({"a": "[3]", "b": 0.5, "other": 1}, names) == {"a": [3], "b": 0.5}


def test_settings_become_a_trial_of_optuna_if_they_are_in_the_space() -> None:
    names = {"a": Parameter(choice=([1, 2], [3])), "b": Parameter(uniform=(0, 1))}
    trial = space.frozen_trial(names, {"a": [3], "b": 0.5, "other": 1}, [2.0, 3.0])
    assert trial is not None and trial.params == {"a": "[3]", "b": 0.5} and trial.values == [2.0, 3.0]
    waiting = space.frozen_trial(names, {"a": [3], "b": 0.5}, None, state=optuna.trial.TrialState.WAITING)
    assert waiting is not None and waiting.values is None and waiting.state == optuna.trial.TrialState.WAITING
    assert space.frozen_trial(names, {"a": [9], "b": 0.5}, None) is None
    assert space.frozen_trial(names, {"a": [3]}, [1.0]) is None


def test_a_grid_ends_when_all_its_points_are_done() -> None:
    six = {"a": Parameter(choice=(1, 2)), "b": Parameter(uniform=(1, 3), integer=True)}
    for sampler, trials, planned in (("grid", 20, 6), ("grid", 4, 4), ("random", 20, 20)):
        made = TuneConfig.model_validate({"space": {}, "sampler": sampler, "trials": trials})
        assert space.planned_trials(made.model_copy(update={"space": six})) == planned


def test_bounds_steps_and_choices_are_tried_on_the_settings(flat: Dataset) -> None:
    tried: list[tuple[dict[str, Any], str]] = []

    class Tried:
        def changed(self, values: dict[str, Any], source: str) -> None:
            tried.append((values, source))

    names = {
        "x": {"uniform": [1, 9]},
        "y": {"uniform": [0, 1], "step": 0.25, "when": {"z": [True, False]}},
        "n": {"log": [2, 64], "integer": True},
        "z": {"choice": [True, False], "when": {"n": 2}},
    }
    space.check_space(Tried(), TuneConfig.model_validate({"space": names}), {})  # type: ignore[arg-type]
    condition = {"n": 2, "z": True}
    assert [values for values, _ in tried] == [
        {"x": 1.0}, {"x": 9.0}, {"x": pytest.approx(1 + 8 / 2.718281828)},
        {**condition, "y": 0.0}, {**condition, "y": 1.0}, {**condition, "y": 0.25},
        {"n": 2}, {"n": 64},
        {"n": 2, "z": True}, {"n": 2, "z": False},
    ]  # fmt: skip
    assert [type(values["n"]) for values, _ in tried if list(values) == ["n"]] == [int, int]
    assert tried[0][1] == "tune.space.x"


def test_paths_of_a_study_are_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Run.create(tmp_path / "runs" / "first", config={}, environment={})
    data: dict[str, Any] = {
        "prepare": {"input": ["a/*.h5", "s3://b/c"], "output": None},
        "train": {"dataset": "data", "start_from": "first"},
    }
    paths = space.absolute_paths(data)
    assert paths == {
        "prepare.input": [str(tmp_path / "a/*.h5"), "s3://b/c"],
        "train.dataset": str(tmp_path / "data"),
        "train.start_from": str(tmp_path / "runs" / "first"),
    }
    data["train"]["start_from"] = "s3://b/model"
    assert space.absolute_paths(data)["train.start_from"] == "s3://b/model"


def test_the_settings_of_a_trial_have_its_values_and_no_study() -> None:
    data = {"train": {"epochs": 3, "optimizer": {"lr": 0.1}}, "tune": {"trials": 3}}
    changed = space.trial_document(data, {"train.optimizer.lr": 0.5})
    assert changed == {"train": {"epochs": 3, "optimizer": {"lr": 0.5}}}
    assert data["train"] == {"epochs": 3, "optimizer": {"lr": 0.1}}


def test_a_key_whose_value_is_no_number_needs_no_integers(flat: Dataset) -> None:
    """The advice is given for ranges only, and a range of the right kind is accepted."""
    settings = template(flat, tune={"space": {"wide": {"choice": [2.5]}}})
    with pytest.raises(ConfigError) as refused:
        space.check_space(settings, settings.tune or TuneConfig(), {})
    assert "valid integer" in str(refused.value) and "integer: true" not in str(refused.value)
    whole = template(flat, tune={"space": {"wide": {"uniform": [2, 8], "integer": True}}})
    space.check_space(whole, whole.tune or TuneConfig(), {})
