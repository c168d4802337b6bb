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


def check_is_model(made: Any, origin: str) -> Any:
    """Return what a function made, if it is a model.

    Raises:
        RecipeError: It is not a model.
    """
    if not (is_keras(made) or is_module(made)):
        raise RecipeError(f"{origin} returned a {type(made).__name__}, not a torch.nn.Module or a Keras model")
    return made


def load_model(place: str, arguments: Mapping[str, Any], *, penalties: str = "refuse") -> nn.Module:
    """A fresh model of `file.py:name`, `module:name` or a file with one of the `MODEL_ENDINGS` endings.

    Raises:
        ConfigError, RecipeError: there is none, or it cannot be made.
    """
    path = Path(place)
    if path.suffix in MODEL_ENDINGS and arguments:
        raise ConfigError(f"model.arguments go to a function that builds a model; {path.name} is a file of one")
    from clew.models import keras

    if path.suffix in KERAS_ENDINGS:
        return keras.to_module(keras.read_keras(path), penalties=penalties)
    if path.suffix == PROGRAM_ENDING:
        from clew.models.torch_program import TrainableProgram

        return TrainableProgram(path)
    build = load_code(place)
    try:
        with keras.seeded_initialisation():
            made = build if is_keras(build) or is_module(build) else build(**arguments)
    except TypeError as error:
        raise ConfigError(f"{place} cannot be called with {dict(arguments)}: {error}") from error
    return as_module(check_is_model(made, place), penalties=penalties, fresh=made is not build)


def as_module(given: Any, *, penalties: str = "refuse", fresh: bool = False) -> nn.Module:
    """A model handed over, as a module of its own."""
    if is_keras(given):
        from clew.models import keras

        keras.check_supported(given, penalties=penalties)
        return keras.to_module(given if fresh else keras.from_bytes(keras.to_bytes(given)), penalties=penalties)
    made: nn.Module = given if fresh else copy.deepcopy(given)
    return made


def gives_probabilities(model: nn.Module) -> bool:
    """Whether a model's outputs are probabilities, as far as its last layer tells; else they are logits."""
    from torch import nn

    from clew.models import keras

    source = getattr(model, "source", None)
    if source is not None:
        return keras.gives_probabilities(source)
    last: nn.Module = model
    while isinstance(last, nn.Sequential) and len(last):
        last = last[-1]
    return isinstance(last, (nn.Softmax, nn.Sigmoid))
