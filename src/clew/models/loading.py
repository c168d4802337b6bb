"""Loads a model from code, a Keras file, an exported program or a Python object.

Neither torch nor Keras is imported before a model is made, so that a wrong name is reported quickly.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clew.errors import ConfigError, RecipeError
from clew.recipe import load_code

if TYPE_CHECKING:
    from torch import nn

KERAS_ENDINGS = (".keras", ".h5", ".hdf5", ".json")
PROGRAM_ENDING = ".pt2"
MODEL_ENDINGS = (*KERAS_ENDINGS, PROGRAM_ENDING)
"""Endings of files that hold a model."""


def is_keras(model: Any) -> bool:
    """Whether this is a Keras model."""
    keras = sys.modules.get("keras")
    return keras is not None and isinstance(model, keras.Model)


def is_module(model: Any) -> bool:
    """Whether this is a module of torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module)


def is_lightning(model: Any) -> bool:
    """Whether this is a LightningModule, of `lightning` or of `pytorch_lightning`, or a class of them."""
    from clew.models.lightning.refusals import lightning_classes

    classes = lightning_classes("LightningModule")
    return issubclass(model, classes) if isinstance(model, type) else isinstance(model, classes)


def lightning_is_loaded() -> bool:
    """Whether a package of Lightning is loaded."""
    return any(name in sys.modules for name in ("lightning.pytorch", "pytorch_lightning"))


def lightning_recipe() -> type[Any]:
    """Return the recipe of LightningModules."""
    from clew.models.lightning.recipe import LightningColumns

    return LightningColumns


def lightning_data(model: Any, data: Any) -> tuple[Any, Any, dict[str, Any]] | None:
    """Return the data of a LightningDataModule, or of a LightningModule that brings its own; None for other data.

    Args:
        model: The model, a function that makes it, or its location.
        data: The data to train on: a data module, a class of them or their `file.py:Name`. None: that of the model.

    Returns:
        See `clew.models.lightning.data_module.data_tables`.
    """
    from clew.models.lightning import data_module

    if data is None:
        made = model if not isinstance(model, type) else None
        return data_module.data_tables(made) if made is not None and is_lightning(made) else None
    source = data_module.find_data_module(data)
    return None if source is None else data_module.data_tables(source)


def is_estimator(model: Any) -> bool:
    """Whether this is an estimator with the interface of scikit-learn."""
    methods = ("fit", "predict", "get_params", "set_params")
    return not isinstance(model, type) and all(callable(getattr(model, name, None)) for name in methods)


def load_estimator(name: str, arguments: Mapping[str, Any], *, classes: bool) -> Any:
    """Return a new estimator; see `clew.models.estimators.lookup.load_estimator`."""
    from clew.models.estimators import lookup

    return lookup.load_estimator(name, arguments, classes=classes)


def estimator_reference(estimator: Any) -> tuple[str, dict[str, Any]]:
    """Return location and arguments of an estimator; see `clew.models.estimators.lookup.reference_of`."""
    from clew.models.estimators import lookup

    return lookup.reference_of(estimator)


def estimator_module(estimator: Any, column: str) -> nn.Module:
    """Return an estimator as a module.

    Args:
        estimator: A new estimator.
        column: The column of samples with its features.
    """
    from clew.models.estimators import EstimatorModule

    return EstimatorModule(estimator, column)


def check_is_model(model: Any, origin: str) -> Any:
    """Return what a function made, if it is a model.

    Raises:
        RecipeError: It is not a model.
    """
    if is_estimator(model) and not is_keras(model) and not is_module(model):
        raise RecipeError(f"{origin} returned the estimator {type(model).__name__}; name it with --estimator {origin}")
    if not (is_keras(model) or is_module(model)):
        raise RecipeError(f"{origin} returned a {type(model).__name__}, not a torch.nn.Module or a Keras model")
    return model


def load_model(reference: str, arguments: Mapping[str, Any], *, penalties: str = "refuse") -> nn.Module:
    """Return a new model from `file.py:name`, `module:name` or a file with one of the `MODEL_ENDINGS`.

    Raises:
        ConfigError, RecipeError: There is no such model, or it cannot be built.
    """
    path = Path(reference)
    if path.suffix in MODEL_ENDINGS and arguments:
        raise ConfigError(f"model.arguments are for a function that builds a model; {path.name} is a file")
    from clew.models import keras

    if path.suffix in KERAS_ENDINGS:
        return keras.to_module(keras.read_keras(path), penalties=penalties)
    if path.suffix == PROGRAM_ENDING:
        from clew.models.torch_program import TrainableProgram

        return TrainableProgram(path)
    build = load_code(reference)
    try:
        with keras.seeded_initialisation():
            model = build if is_keras(build) or is_module(build) else build(**arguments)
    except TypeError as error:
        raise ConfigError(f"{reference} cannot be called with {dict(arguments)}: {error}") from error
    return as_module(check_is_model(model, reference), penalties=penalties, fresh=model is not build)


def as_module(model: Any, *, penalties: str = "refuse", fresh: bool = False) -> nn.Module:
    """Return a model that was passed in Python as a module. It is copied unless it is `fresh`."""
    if is_keras(model):
        from clew.models import keras

        keras.check_supported(model, penalties=penalties)
        return keras.to_module(model if fresh else keras.from_bytes(keras.to_bytes(model)), penalties=penalties)
    module: nn.Module = model if fresh else copy.deepcopy(model)
    return module


def gives_probabilities(model: nn.Module) -> bool:
    """Whether the outputs of a model are probabilities, by its last layer; else they are logits."""
    from torch import nn

    from clew.models import keras
    from clew.models.estimators import EstimatorModule

    if isinstance(model, EstimatorModule):
        return model.classifier
    source = getattr(model, "source", None)
    if source is not None:
        return keras.gives_probabilities(source)
    last: nn.Module = model
    while isinstance(last, nn.Sequential) and len(last):
        last = last[-1]
    return isinstance(last, (nn.Softmax, nn.Sigmoid))
