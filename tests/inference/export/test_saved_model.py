"""SavedModels of TensorFlow: written by Keras where TensorFlow is installed, refused in one line elsewhere."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path

import numpy as np
import pytest
from torch import nn

import clew
from clew import Run
from clew.errors import ConfigError, RecipeError
from tests.models.keras_models import cnn, images, saved

HAS_TENSORFLOW = importlib.util.find_spec("tensorflow") is not None


@pytest.fixture(scope="module")
def keras_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("keras")
    path = saved(cnn(), folder / "cnn.keras")
    return clew.train(path, images(60), output=folder / "run", epochs=1, threads=1)


@pytest.mark.skipif(HAS_TENSORFLOW, reason="TensorFlow is installed")
def test_without_tensorflow_one_line_says_what_to_install(keras_run: Run, tmp_path: Path) -> None:
    message = "a SavedModel needs TensorFlow, which is not installed: pip install tensorflow-cpu"
    with pytest.raises(ConfigError, match=message):
        clew.export(keras_run, to="savedmodel", output=tmp_path / "model.savedmodel")
    (tmp_path / "other.savedmodel").mkdir()
    with pytest.raises(ConfigError, match=message):
        clew.predict(tmp_path / "other.savedmodel", images(3)[0], trust=True)
    assert [path.name for path in tmp_path.iterdir()] == ["other.savedmodel"]


def test_a_model_that_is_not_keras_is_refused(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(60, 2)).astype(np.float32)
    model = nn.Linear(2, 1)
    run = clew.train(model, (x, x.sum(axis=1)), output=tmp_path / "run", epochs=1, threads=1)
    with pytest.raises(RecipeError, match="only a model that came from Keras can be exported to a SavedModel"):
        clew.export(run, to="savedmodel", output=tmp_path / "model.savedmodel", recipe=model)


@pytest.mark.skipif(not HAS_TENSORFLOW, reason="TensorFlow is not installed")
def test_a_saved_model_gives_the_outputs_of_the_run(keras_run: Run, tmp_path: Path) -> None:
    tensorflow = importlib.import_module("tensorflow")
    exported = clew.export(keras_run, to="savedmodel", output=tmp_path / "model.savedmodel")
    assert exported.facts.difference < 1e-4
    again = clew.export(keras_run, to="savedmodel", output=exported.path, replace=True)
    assert again.facts == exported.facts and [path.name for path in tmp_path.iterdir()] == ["model.savedmodel"]
    pixels = images(7, seed=3)[0]
    expected, predicted = (np.asarray(clew.predict(each, pixels)) for each in (keras_run, exported.path))
    np.testing.assert_allclose(predicted, expected, rtol=1e-4, atol=1e-5)
    loaded = tensorflow.saved_model.load(str(exported.path))
    np.testing.assert_allclose(loaded.serve(pixels).numpy(), expected, rtol=1e-4, atol=1e-5)
