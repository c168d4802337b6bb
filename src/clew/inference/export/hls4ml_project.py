"""Projects of hls4ml: a dense network in C++ with fixed-point numbers, for synthesis to firmware.

The same C++ compiles with g++. This emulation computes with the same fixed-point numbers, and is what an export
compares with the original.
"""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import math
import re
import shutil
import subprocess
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn

from clew.errors import ConfigError, RecipeError
from clew.inference.exported_model import HLS4ML_FUNCTION
from clew.inference.flat_forward import InputScale, ModelInput

_PRECISION = re.compile(r"ap_fixed<\s*(\d+)\s*,\s*(\d+)\s*>")
_MAX_WIDTH = 64
_ACTIVATIONS = (nn.ReLU, nn.LeakyReLU, nn.ELU, nn.Sigmoid, nn.Tanh)
_WITH_SLOPE = (nn.LeakyReLU, nn.ELU)
"""Activations with a slope, to which hls4ml would give 8 bits."""
_WITHOUT_EFFECT = (nn.Dropout, nn.Identity)
_FUNCTIONS: dict[Any, type[nn.Module]] = {
    torch.relu: nn.ReLU,
    nn.functional.relu: nn.ReLU,
    torch.tanh: nn.Tanh,
    torch.sigmoid: nn.Sigmoid,
}
"""Layers that do the same as a function."""
_INPUT = "input_1"
"""Name that hls4ml gives to the input."""
_SCALED_RANGE = 32
"""Inputs may have values up to this number times their scale, for example 32 standard deviations from the mean."""
_SUPPORTED = "Linear, BatchNorm1d, Flatten, Dropout, Identity, ReLU, LeakyReLU, ELU, Sigmoid and Tanh"


class Precision(NamedTuple):
    """A fixed-point type: bits in all, and bits before the point, with the sign."""

    width: int
    integer: int

    @classmethod
    def parse(cls, text: str) -> Precision:
        """Return the precision that a text such as `ap_fixed<40,14>` names.

        Raises:
            ConfigError: It does not have this form, or has impossible numbers.
        """
        match = _PRECISION.fullmatch(text.strip())
        if match is None:
            raise ConfigError(
                f"precision '{text}' does not have the form {DEFAULT_PRECISION} (bits, bits before the point)"
            )
        precision = cls(int(match[1]), int(match[2]))
        if not 1 <= precision.integer < precision.width <= _MAX_WIDTH:
            raise ConfigError(
                f"precision '{text}': at most {_MAX_WIDTH} bits, at least one of them before the point and one after"
            )
        return precision

    @property
    def fraction(self) -> int:
        """Bits after the point."""
        return self.width - self.integer

    def __str__(self) -> str:
        return f"ap_fixed<{self.width},{self.integer}>"


DEFAULT_PRECISION = Precision(40, 14)
"""Wide enough for the tolerance that other formats have."""


class DenseNetwork(NamedTuple):
    """A chain of layers by name, the length of its input, and the types that are not left to hls4ml, by layer."""

    layers: nn.Sequential
    input_size: int
    types: dict[str, dict[str, str]]

    @property
    def output_size(self) -> int:
        """The length of the output."""
        return [each.out_features for each in self.layers if isinstance(each, nn.Linear)][-1]


def check_tools() -> None:
    """Check that hls4ml and g++ are installed.

    Raises:
        ConfigError: One of them is not.
    """
    try:
        with _without_messages():
            import hls4ml  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"hls4ml projects need the extra hls4ml (pip install 'clew[hls4ml]'): {error}") from error
    if shutil.which("g++") is None:
        raise ConfigError("hls4ml projects are compiled and compared with the original, which needs g++; install it")


def dense_network(model: nn.Module, inputs: Sequence[ModelInput], precision: Precision) -> DenseNetwork:
    """Return a model as a chain of layers that hls4ml supports, with the scaling of its input as the first.

    Args:
        model: The network.
        inputs: Its inputs: one column.
        precision: The type of its numbers. That of inputs and scaling follows from it and from the scale.

    Raises:
        RecipeError: It has another input, or another layer.
    """
    if len(inputs) != 1 or inputs[0].part != "column":
        names = ", ".join(each.name for each in inputs)
        raise RecipeError(f"hls4ml projects have one input of fixed length, this model has {names}; use --to onnx")
    lengths = [int(length) for length in inputs[0].shape[1:]]
    layers = _chain(model)
    if len(lengths) != 1 and not isinstance(layers[0], nn.Flatten):
        raise RecipeError(f"hls4ml projects take one vector per event, this model an array {lengths}; add nn.Flatten")
    layers_to_write = [_plain_normalisation(each) for each in layers if not isinstance(each, nn.Flatten)]
    named = [(f"{type(each).__name__.lower()}_{number}", each) for number, each in enumerate(layers_to_write, 1)]
    types = {name: {"param": str(precision)} for name, each in named if isinstance(each, _WITH_SLOPE)}
    scale = inputs[0].scale
    if scale is not None:
        factor, shift = (
            torch.tensor(each, dtype=torch.float64).expand(lengths) for each in (scale.factor, scale.shift)
        )
        named.insert(0, ("scaling", _normalisation(factor.flatten(), (-shift * factor).flatten())))
        types.update(_scaling_types(scale, precision))
    return DenseNetwork(nn.Sequential(OrderedDict(named)).double().eval(), math.prod(lengths), types)


def _chain(model: nn.Module) -> list[nn.Module]:
    """Return the layers of a model in the order in which they are applied.

    Raises:
        RecipeError: One of them is not supported, or they are not a chain.
    """
    try:
        whole = nn.Sequential(OrderedDict(model=model))  # a model that is one layer would be traced into its functions
        graph = fx.symbolic_trace(whole).graph
    except Exception as error:  # the code of a model raises any type
        raise RecipeError(
            f"{type(model).__name__} is not a chain of layers that hls4ml supports; use --to onnx"
        ) from error
    layers: list[nn.Module] = []
    previous: fx.Node | None = None
    for node in graph.nodes:
        if node.op not in ("placeholder", "output"):
            layers.append(_layer(whole, node))
        if node.all_input_nodes != ([] if previous is None else [previous]):
            raise RecipeError(f"layer '{node.name}' does not continue the one before it: hls4ml projects are one chain")
        previous = node
    layers = [each for each in layers if not isinstance(each, _WITHOUT_EFFECT)]
    if not any(isinstance(each, nn.Linear) for each in layers):
        raise RecipeError("hls4ml projects are dense networks, and this model has no layer Linear")
    return layers


def _layer(model: nn.Module, node: fx.Node) -> nn.Module:
    """Return the layer of a node.

    Raises:
        RecipeError: It is not supported.
    """
    if node.op == "call_module":
        layer = model.get_submodule(str(node.target))
        title = f"{type(layer).__name__} ('{str(node.target).removeprefix('model.')}')"
        flat = isinstance(layer, nn.Flatten) and (layer.start_dim, layer.end_dim) == (1, -1)
        normal = isinstance(layer, nn.BatchNorm1d) and layer.running_mean is not None
        if type(layer) in (nn.Linear, *_ACTIVATIONS, *_WITHOUT_EFFECT) or flat or normal:
            return layer
    else:
        title = f"'{node.name}'"
        if node.target in _FUNCTIONS:
            return _FUNCTIONS[node.target]()
    raise RecipeError(f"hls4ml projects cannot have the layer {title}, only {_SUPPORTED}; use --to onnx")


def _plain_normalisation(layer: nn.Module) -> nn.Module:
    """Return a copy of a layer; of a normalisation, one that has a factor and an offset only."""
    if not isinstance(layer, nn.BatchNorm1d):
        return copy.deepcopy(layer)
    assert layer.running_mean is not None and layer.running_var is not None
    factor = (layer.running_var.double() + layer.eps).rsqrt()
    factor = factor * layer.weight.double() if layer.affine else factor
    offset = -layer.running_mean.double() * factor
    return _normalisation(factor, offset + layer.bias.double() if layer.affine else offset)


def _normalisation(factor: Tensor, offset: Tensor) -> nn.BatchNorm1d:
    layer = nn.BatchNorm1d(len(factor), eps=0.0, dtype=torch.float64)
    layer.weight.data, layer.bias.data = factor.detach().clone(), offset.detach().clone()
    return layer


def _scaling_types(scale: InputScale, precision: Precision) -> dict[str, dict[str, str]]:
    """Return types for raw inputs and their scaling that are as exact as the network after them."""
    pairs = list(zip(scale.shift, scale.factor, strict=True))
    largest_input = max(abs(shift) + _SCALED_RANGE / abs(factor) for shift, factor in pairs)
    largest_factor = max(abs(factor) for _, factor in pairs)
    largest_offset = max(abs(shift * factor) for shift, factor in pairs)
    before = max(_bits(largest_input) + 1, 1)
    raw = _type(before, precision.fraction + _bits(largest_factor))
    return {
        _INPUT: {"result": raw},
        "scaling": {
            "scale": _type(_bits(largest_factor) + 1, precision.fraction + before),
            "bias": _type(_bits(largest_offset) + 1, precision.fraction + 1),
            "result": str(precision),
        },
    }


def _bits(value: float) -> int:
    """Return the bits before the point of a number: the least n with |value| < 2^n. It is negative for small ones."""
    return math.frexp(value)[1]


def _type(integer: int, fraction: int) -> str:
    integer, fraction = max(integer, 1), max(fraction, 1)
    return str(Precision(integer + fraction, integer))


def write_project(network: DenseNetwork, precision: Precision, folder: Path) -> None:
    """Write a project and compile its emulation.

    Raises:
        RecipeError: hls4ml cannot convert the network, or g++ cannot compile it.
    """
    from hls4ml.converters import convert_from_pytorch_model
    from hls4ml.utils import config_from_pytorch_model

    shape = (network.input_size,)
    try:
        with _without_messages():
            config = config_from_pytorch_model(
                network.layers, shape, granularity="name", backend="Vitis", default_precision=str(precision)
            )
            for name, types in network.types.items():
                config["LayerName"][name]["Precision"].update(types)
            project = convert_from_pytorch_model(
                network.layers,
                output_dir=str(folder),
                project_name=HLS4ML_FUNCTION,
                backend="Vitis",
                hls_config=config,
                write_weights_txt=False,  # the library would look for them at the path of today
            )
            project.write()
    except Exception as error:  # hls4ml raises plain exceptions
        raise RecipeError(
            f"hls4ml cannot convert the model: {type(error).__name__}: {_last_line(str(error))}"
        ) from error
    settings = folder / "hls4ml_config.yml"
    settings.write_text(re.sub(r"(?m)^OutputDir: .*$", "OutputDir: .", settings.read_text()))
    built = subprocess.run(["bash", "build_lib.sh"], cwd=folder, capture_output=True, text=True, check=False)
    if built.returncode:
        raise RecipeError(f"g++ cannot compile the emulation of hls4ml: {_last_line(built.stderr)}")


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no message"


@contextlib.contextmanager
def _without_messages() -> Iterator[None]:
    """Hide what hls4ml prints about every layer."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
