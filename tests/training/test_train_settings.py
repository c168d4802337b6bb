"""The typed keyword arguments of `clew.train`."""

from __future__ import annotations

from pathlib import Path

import pytest

import clew
from clew import Dataset
from clew.errors import ConfigError
from clew.training.config import OptimizerConfig, TrainConfig
from clew.training.train_settings import ModelSettings, TrainSettings
from tests.training import recipe


def test_every_setting_of_a_training_is_a_typed_argument() -> None:
    arguments = TrainSettings.__annotations__.keys() - ModelSettings.__annotations__.keys()
    assert arguments == TrainConfig.model_fields.keys() - {"dataset"} | {"lr"}


def test_an_unknown_argument_is_refused_with_the_nearest_name(flat: Dataset) -> None:
    with pytest.raises(ConfigError, match="did you mean 'epochs'"):
        clew.train(recipe("line"), flat, epoch=1)  # type: ignore[call-arg]


@pytest.mark.parametrize("optimizer", [{"name": "sgd"}, OptimizerConfig(name="sgd")])
def test_a_learning_rate_keeps_the_rest_of_the_optimiser(flat: Dataset, tmp_path: Path, optimizer: object) -> None:
    run = clew.train(
        recipe("line"),
        flat,
        epochs=1,
        threads=1,
        lr=0.25,
        optimizer=optimizer,  # type: ignore[arg-type]
        seed=None,
        output=tmp_path / "run",
    )
    settings = run.config().data["train"]
    assert (settings["optimizer"]["name"], settings["optimizer"]["lr"], settings["seed"]) == ("sgd", 0.25, 0)
