"""Keras models as torch modules. Keras computes, on its torch backend; parameters and buffers belong to torch.

Keras numbers the names of variables in the order in which layers were built, and a forward pass assigns statistics to
variables. Here every weight is a parameter and every statistic a buffer, named by its position in the model. So
strategies, checkpoints and optimisers see a normal torch module.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from clew.errors import ConfigError, RecipeError

BatchMoments = Callable[[Tensor, list[int], float], tuple[Tensor, Tensor, Tensor]]
"""Returns mean, variance and count over some dimensions and all ranks, from this rank's values and their number."""


def load_keras() -> Any:
    """Import Keras with its torch backend.

    Raises:
        ConfigError: Keras is not installed, or was loaded with another backend.
    """
    if "keras" not in sys.modules:
        os.environ["KERAS_BACKEND"] = "torch"
    try:
        import keras
    except ImportError as error:
        raise ConfigError(f"Keras models need the extra keras (pip install 'clew[keras]'): {error}") from error
    backend = keras.backend.backend()
    if backend != "torch":
        raise ConfigError(
            f"keras is loaded with its {backend} backend, clew needs torch: import clew before keras and do not set "
            f"KERAS_BACKEND, or set KERAS_BACKEND=torch"
        )
    return keras


def read_keras(path: Path) -> Any:
    """Read the Keras model in a `.keras` or `.h5` file, or build a new one from the architecture in a JSON file.

    Raises:
        ConfigError: The file is missing, or Keras cannot read it.
    """
    keras = load_keras()
    if not path.is_file():
        raise ConfigError(f"no file {path}")
    try:
        with seeded_initialisation(), without_array_warnings():
            if path.suffix == ".json":
                return keras.models.model_from_json(path.read_text())
            return keras.models.load_model(path, compile=False)
    except Exception as error:  # Keras raises many types
        raise ConfigError(f"{path}: Keras cannot read it: {_first_line(error)}") from error


def to_bytes(model: Any) -> bytes:
    """Return a Keras model as the bytes of a `.keras` file.

    Raises:
        RecipeError: It cannot be saved.
    """
    load_keras()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        try:
            with without_array_warnings():
                model.save(path)
        except Exception as error:
            raise RecipeError(f"the Keras model cannot be saved ({_first_line(error)}); use file.py:build") from error
        return path.read_bytes()


def from_bytes(content: bytes) -> Any:
    """Return the Keras model that `to_bytes` has saved."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        path.write_bytes(content)
        return read_keras(path)


def to_module(model: Any, *, penalties: str = "refuse") -> nn.Module:
    """Return a Keras model as a torch module with the same weights.

    A model that is a chain of layers becomes a sequence of modules, so that it can be split into stages and shards.

    Args:
        model: The Keras model.
        penalties: "refuse" or "ignore" regularizers and constraints, which clew does not apply.

    Raises:
        ConfigError: It has penalties, or its weights do not exist yet.
    """
    check_supported(model, penalties=penalties)
    for layer in _all_layers(model):
        if getattr(layer, "synchronized", False):
            layer.synchronized = False  # train.buffers decides; Keras cannot synchronise on torch
    layers = _chain(model)
    module = KerasChain(model, layers) if layers else KerasModule(model)
    object.__setattr__(module, "source", model)
    return module


def check_supported(model: Any, *, penalties: str = "refuse") -> None:
    """Check that a Keras model can be used.

    Raises:
        ConfigError: It cannot be used.
    """
    load_keras()
    if not model.built or not model.inputs:
        raise ConfigError(f"the Keras model {model.name} is not built; give it an Input, or call it once on data")
    if penalties != "ignore":
        _check_penalties(model)


def to_keras(module: KerasModule | KerasChain) -> Any:
    """Return the Keras model from which a module was made, with the weights of the module."""
    model = module.source
    parts: list[Any] = list(module) if isinstance(module, KerasChain) else [module]
    values = {id(variable): tensor for part in parts for variable, tensor in part.state()}
    with without_array_warnings():
        model.set_weights([values[id(variable)].detach().cpu().numpy() for variable in model.weights])
    return model


def gives_probabilities(model: Any) -> bool:
    """Whether the last activation of a Keras model is a softmax or a sigmoid."""
    keras = load_keras()
    try:
        last = model.layers[-1] if model.layers else model
    except AttributeError:
        return False
    if getattr(last, "layers", None):
        return gives_probabilities(last)
    if isinstance(last, keras.layers.Softmax):
        return True
    activations = (keras.activations.softmax, keras.activations.sigmoid)
    return getattr(last, "activation", None) in activations


class KerasModule(nn.Module):
    """A Keras layer, or a whole model, computed with this module's parameters and buffers."""

    layer: Any
    source: Any
    """The whole Keras model."""
    dimensions = 0
    """Number of dimensions of the first input, if a last one of size 1 may be missing."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        object.__setattr__(self, "layer", layer)  # not a submodule, because its names are numbered
        trainable = {id(v) for each in _all_layers(layer) for v in each._trainable_variables}
        self._names: list[tuple[Any, str]] = []
        counts: dict[str, int] = {}
        for variable in layer.weights:
            name = "".join(c if c.isalnum() else "_" for c in variable.name)
            counts[name] = counts.get(name, -1) + 1
            name = f"{name}_{counts[name]}" if counts[name] else name
            value = variable.value.detach()
            if id(variable) in trainable:
                self.register_parameter(name, nn.Parameter(value, requires_grad=bool(variable.trainable)))
            else:
                self.register_buffer(name, value.clone())
            self._names.append((variable, name))
        weights = {id(variable) for variable, _ in self._names}
        self._seeds = [variable for variable in layer.variables if id(variable) not in weights]

    def state(self) -> list[tuple[Any, Tensor]]:
        """Every variable of the layer, with the tensor that holds its value."""
        return [(variable, getattr(self, name)) for variable, name in self._names]

    def forward(self, *inputs: Tensor | None) -> Any:
        keras, state = load_keras(), self.state()
        # seeds come from torch's random numbers, which differ from rank to rank and are part of a checkpoint
        seeds = [(v, torch.randint(1 << 30, (2,), dtype=torch.int32)) for v in self._seeds] if self.training else []
        with keras.StatelessScope(state_mapping=state + seeds) as scope:
            outputs = self._call(*(value for value in inputs if value is not None))
        if self.training:
            with torch.no_grad():
                for variable, tensor in state:
                    new = scope.get_current_value(variable)
                    if new is not tensor:
                        tensor.copy_(new)
        return outputs

    def use_batch_moments(self, moments: BatchMoments) -> None:
        """Let every batch normalisation use the mean and variance over all ranks, from `moments`."""
        use_batch_moments(self.layer, moments)

    def extra_repr(self) -> str:
        return f"{type(self.layer).__name__} {self.layer.name}"

    def _call(self, *inputs: Tensor) -> Any:
        if inputs[0].ndim == self.dimensions - 1:
            inputs = (inputs[0].unsqueeze(-1), *inputs[1:])
        inputs_expected = len(getattr(self.layer, "inputs", None) or [None])
        if len(inputs) == 2 and inputs_expected == 1:  # a padded tensor, and the mask of real items
            outputs = self.layer(inputs[0], mask=inputs[1], training=self.training)
        else:
            outputs = self.layer(inputs[0] if len(inputs) == 1 else list(inputs), training=self.training)
        if isinstance(outputs, (list, tuple)):
            return dict(zip(self.layer.output_names, outputs, strict=True))
        return outputs


class KerasChain(nn.Sequential):
    """A Keras model that is a chain of layers."""

    source: Any

    def __init__(self, model: Any, layers: Sequence[Any]) -> None:
        first, *others = map(KerasModule, layers)
        first.dimensions = len(model.input_shape)
        super().__init__(first, *others)

    def forward(self, inputs: Tensor, mask: Tensor | None = None) -> Any:
        first, *others = self
        outputs = first(inputs, mask)
        for layer in others:
            outputs = layer(outputs)
        return outputs


def _chain(model: Any) -> list[Any]:
    """The layers of a model in which each takes the output of the previous one only; empty for any other model."""
    keras = load_keras()
    layers = [layer for layer in model.layers if not isinstance(layer, keras.layers.InputLayer)]
    if len(model.inputs) != 1 or len(model.outputs) != 1 or len({id(layer) for layer in layers}) != len(layers):
        return []
    if any(isinstance(layer, keras.layers.Masking) or getattr(layer, "mask_zero", False) for layer in layers):
        return []  # a mask would be lost between stages
    if isinstance(model, keras.Sequential):
        return layers
    previous = model.inputs[0]
    for layer in layers:
        if len(layer._inbound_nodes) != 1 or layer.input is not previous:
            return []
        previous = layer.output
    return layers if previous is model.outputs[0] else []


def use_batch_moments(model: Any, moments: BatchMoments) -> None:
    """Let every batch normalisation of a Keras model or layer use the mean and variance that `moments` returns."""
    for layer in _all_layers(model):
        if isinstance(layer, load_keras().layers.BatchNormalization):
            object.__setattr__(layer, "_moments", functools.partial(_moments, layer, moments))


def _moments(layer: Any, moments: BatchMoments, inputs: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Mean and variance of the inputs of a batch normalisation over all ranks."""
    axes = list(layer._reduction_axes)
    count = float(inputs.numel() // inputs.shape[layer.axis])
    if mask is not None:
        inputs = torch.where(mask.unsqueeze(-1), inputs, 0)
        count = float(mask.sum())
    mean, variance, _ = moments(inputs, axes, count)
    return mean, variance


def _check_penalties(model: Any) -> None:
    for layer in _all_layers(model):
        for name in sorted(vars(layer)):
            if name.endswith(("_regularizer", "_constraint")) and getattr(layer, name) is not None:
                raise ConfigError(
                    f"layer {layer.name} has a {name}, which clew does not apply; use train.optimizer.weight_decay, "
                    "and leave it out by model.penalties=ignore"
                )


def _all_layers(layer: Any) -> Iterator[Any]:
    yield from layer._flatten_layers()


@contextlib.contextmanager
def seeded_initialisation() -> Iterator[None]:
    """Let initial weights depend on torch's seed: Keras takes its seeds from Python's random numbers."""
    before = random.getstate()
    random.seed(torch.initial_seed())
    try:
        yield
    finally:
        random.setstate(before)


@contextlib.contextmanager
def without_array_warnings() -> Iterator[None]:
    """Hide the warning of NumPy 2 that Keras 3.15 causes whenever a variable becomes an array."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="__array__ implementation", category=DeprecationWarning)
        yield


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"
