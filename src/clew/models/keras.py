"""Keras models as torch modules. Keras computes, on its torch backend; parameters and buffers are torch's own.

A Keras layer names its variables by numbers that depend on what was built before it, and keeps statistics as variables
that a forward pass assigns to. Here every weight is a parameter, every statistic a buffer, named by its place, so that
strategies, checkpoints and optimisers see a torch module like any other.
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
"""Mean, variance and count over dimensions of all ranks' values, from this rank's values and their number."""


def load_keras() -> Any:
    """The package, on its torch backend.

    Raises:
        ConfigError: it is not installed, or was loaded with another backend.
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
    """The Keras model in a `.keras` or `.h5` file, or a fresh one of the architecture in a JSON file.

    Raises:
        ConfigError: the file is missing, or Keras cannot read it.
    """
    keras = load_keras()
    if not path.is_file():
        raise ConfigError(f"no file {path}")
    try:
        with seeded_initialisation(), without_array_warnings():
            if path.suffix == ".json":
                return keras.models.model_from_json(path.read_text())
            return keras.models.load_model(path, compile=False)
    except Exception as error:  # Keras raises many kinds
        raise ConfigError(f"{path}: Keras cannot read it: {_first_line(error)}") from error


def to_bytes(model: Any) -> bytes:
    """A Keras model as the bytes of a `.keras` file.

    Raises:
        RecipeError: it cannot be saved.
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
    """What was packed."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        path.write_bytes(content)
        return read_keras(path)


def to_module(model: Any, *, penalties: str = "refuse") -> nn.Module:
    """A Keras model as a torch module with the same weights: a chain of its layers where it is one, so that it can be
    cut into stages and shards. `penalties`: what to do about regularizers and constraints, which clew does not apply.

    Raises:
        ConfigError: it has penalties, or its weights are not there yet.
    """
    check_supported(model, penalties=penalties)
    for layer in _all_layers(model):
        if getattr(layer, "synchronized", False):
            layer.synchronized = False  # what train.buffers says; Keras has none of its own on torch
    layers = _chain(model)
    made = KerasChain(model, layers) if layers else KerasModule(model)
    object.__setattr__(made, "source", model)
    return made


def check_supported(model: Any, *, penalties: str = "refuse") -> None:
    """Whether a Keras model can be adopted.

    Raises:
        ConfigError: it cannot; why, and what to do.
    """
    load_keras()
    if not model.built or not model.inputs:
        raise ConfigError(f"the Keras model {model.name} is not built; give it an Input, or call it once on data")
    if penalties != "ignore":
        _check_penalties(model)


def to_keras(module: KerasModule | KerasChain) -> Any:
    """The Keras model that a module was adopted from, with the module's weights."""
    model = module.source
    parts: list[Any] = list(module) if isinstance(module, KerasChain) else [module]
    values = {id(variable): tensor for part in parts for variable, tensor in part.state()}
    with without_array_warnings():
        model.set_weights([values[id(variable)].detach().cpu().numpy() for variable in model.weights])
    return model


def gives_probabilities(model: Any) -> bool:
    """Whether a Keras model's last activation is a softmax or a sigmoid."""
    keras = load_keras()
    try:
        last = model.layers[-1] if model.layers else model
    except AttributeError:
        return False
    if getattr(last, "layers", None):
        return gives_probabilities(last)
    if isinstance(last, keras.layers.Softmax):
        return True
    known = (keras.activations.softmax, keras.activations.sigmoid)
    return getattr(last, "activation", None) in known


class KerasModule(nn.Module):
    """A Keras layer, or a whole model, computed with this module's parameters and buffers."""

    layer: Any
    source: Any
    """The Keras model all of it came from."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        object.__setattr__(self, "layer", layer)  # no submodule: its own names are numbered
        learned = {id(v) for each in _all_layers(layer) for v in each._trainable_variables}
        self._names: list[tuple[Any, str]] = []
        taken: dict[str, int] = {}
        for variable in layer.weights:
            name = "".join(c if c.isalnum() else "_" for c in variable.name)
            taken[name] = taken.get(name, -1) + 1
            name = f"{name}_{taken[name]}" if taken[name] else name
            value = variable.value.detach()
            if id(variable) in learned:
                self.register_parameter(name, nn.Parameter(value, requires_grad=bool(variable.trainable)))
            else:
                self.register_buffer(name, value.clone())
            self._names.append((variable, name))
        own = {id(variable) for variable, _ in self._names}
        self._seeds = [variable for variable in layer.variables if id(variable) not in own]

    def state(self) -> list[tuple[Any, Tensor]]:
        """Every weight of the layer, and the tensor that stands for it."""
        return [(variable, getattr(self, name)) for variable, name in self._names]

    def forward(self, *inputs: Tensor) -> Any:
        keras, state = load_keras(), self.state()
        # seeds come from torch's random numbers, which differ from rank to rank and are part of a checkpoint
        seeds = [(v, torch.randint(1 << 30, (2,), dtype=torch.int32)) for v in self._seeds] if self.training else []
        with keras.StatelessScope(state_mapping=state + seeds) as scope:
            outputs = self._called(*inputs)
        if self.training:
            with torch.no_grad():
                for variable, tensor in state:
                    new = scope.get_current_value(variable)
                    if new is not tensor:
                        tensor.copy_(new)
        return outputs

    def use_batch_moments(self, moments: BatchMoments) -> None:
        """Have every batch normalisation take mean and variance of all ranks' samples, from `moments`."""
        for layer in _all_layers(self.layer):
            if isinstance(layer, load_keras().layers.BatchNormalization):
                object.__setattr__(layer, "_moments", functools.partial(_moments, layer, moments))

    def extra_repr(self) -> str:
        return f"{type(self.layer).__name__} {self.layer.name}"

    def _called(self, *inputs: Tensor) -> Any:
        wanted = len(getattr(self.layer, "inputs", None) or [None])
        if len(inputs) == 2 and wanted == 1:  # a padded tensor, and where there is something
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
        super().__init__(*map(KerasModule, layers))
        self._rank = len(model.input_shape)

    def forward(self, *inputs: Tensor) -> Any:
        value, rest = inputs[0], inputs[1:]
        outputs: Any = value.unsqueeze(-1) if value.ndim == self._rank - 1 else value
        for link in self:
            outputs, rest = link(outputs, *rest), ()
        return outputs


def _chain(model: Any) -> list[Any]:
    """The layers of a model in which each takes what the one before gives, and nothing else; empty if it is not so."""
    keras = load_keras()
    layers = [layer for layer in model.layers if not isinstance(layer, keras.layers.InputLayer)]
    if len(model.inputs) != 1 or len(model.outputs) != 1 or len({id(layer) for layer in layers}) != len(layers):
        return []
    if any(isinstance(layer, keras.layers.Masking) or getattr(layer, "mask_zero", False) for layer in layers):
        return []  # a mask would be lost between stages
    if isinstance(model, keras.Sequential):
        return layers
    before = model.inputs[0]
    for layer in layers:
        if len(layer._inbound_nodes) != 1 or layer.input is not before:
            return []
        before = layer.output
    return layers if before is model.outputs[0] else []


def _moments(layer: Any, moments: BatchMoments, inputs: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Mean and variance of a batch norm's inputs over all ranks."""
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
    """Initial weights follow torch's seed: Keras draws its seeds from Python's random numbers."""
    before = random.getstate()
    random.seed(torch.initial_seed())
    try:
        yield
    finally:
        random.setstate(before)


@contextlib.contextmanager
def without_array_warnings() -> Iterator[None]:
    """Without the words that NumPy 2 has for Keras 3.15 whenever a variable becomes an array."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="__array__ implementation", category=DeprecationWarning)
        yield


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"
