"""Layers that work on all members at once: every tensor has a first axis of members, as (members, events, ...).

vmap does this for any network. These layers do it for plain networks in two thirds of the time: the bias is added
within the product, and no call passes through vmap. `clew.training.packs.forward` tries whether a network is plain.
"""

from __future__ import annotations

import copy
import importlib.util
import itertools
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as f

from clew.training.packs.dropout import StackedDropout
from clew.training.packs.stacked_weights import GradientBuffer, StackedWeights

_ELEMENTWISE = (
    nn.Identity,
    nn.ReLU,
    nn.ReLU6,
    nn.LeakyReLU,
    nn.ELU,
    nn.SELU,
    nn.CELU,
    nn.GELU,
    nn.SiLU,
    nn.Mish,
    nn.Tanh,
    nn.Sigmoid,
    nn.LogSigmoid,
    nn.Softplus,
    nn.Softsign,
    nn.Hardtanh,
    nn.Hardswish,
    nn.Hardsigmoid,
    StackedDropout,
)
"""Layers that treat every value the same way, whatever its position."""


class _StackedLayer(nn.Module):
    """A layer whose weights have a first axis of members. They are set by name, see `load_stack`."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self._settings: Any = {name: value for name, value in vars(layer).items() if not name.startswith("_")}
        for name, _ in [*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False)]:
            self.register_buffer(name, None)
        self._parameter_names = [name for name, _ in layer.named_parameters(recurse=False)]
        self.gradient_buffers: Mapping[str, GradientBuffer] = {}


class LinearFunction(torch.autograd.Function):
    """A linear layer whose gradients have the memory layout of its weights.

    On a GPU this saves a copy of each gradient. On a CPU the copy costs less than returning to Python.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(rows, weight)
        return torch.baddbmm(bias.unsqueeze(1), rows, weight.transpose(1, 2))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, Tensor, Tensor]:
        (gradient,), (rows, weight) = gradients, ctx.saved_tensors
        of_rows = torch.bmm(gradient, weight) if ctx.needs_input_grad[0] else None
        return of_rows, torch.bmm(gradient.transpose(1, 2), rows), gradient.sum(1)


class _StackedLinear(_StackedLayer):
    """A linear layer, with the activation that follows it if `_merge_activations` has put it here."""

    weight: Tensor
    bias: Tensor | None
    activation = ""

    def forward(self, values: Tensor) -> Tensor:
        rows = values if values.ndim == 3 else values.flatten(1, -2)
        bias = self.bias if "bias" in self._parameter_names else None
        if bias is not None and rows.is_cuda and has_triton():
            from clew.training.packs.kernels import layer

            if layer.supports(rows, self.weight):
                function: Any = layer.StackedLinearFunction.apply
                return self._restore_shape(
                    function(rows, self.weight, bias, self.activation, self.claimable_buffers()), values
                )
        outputs = self._restore_shape(self._product(rows, bias), values)
        return _ACTIVATION_FUNCTIONS[self.activation](outputs) if self.activation else outputs

    def claimable_buffers(self) -> list[GradientBuffer | None]:
        """Return the places for the gradients of weight and bias, where kernels may write them."""
        buffers = {} if torch.compiler.is_compiling() else self.gradient_buffers
        return [buffers.get(name) for name in ("weight", "bias")]

    @staticmethod
    def _restore_shape(outputs: Tensor, values: Tensor) -> Tensor:
        return outputs if values.ndim == 3 else outputs.view(*values.shape[:-1], outputs.shape[-1])

    def _product(self, rows: Tensor, bias: Tensor | None) -> Tensor:
        weight = self.weight.transpose(1, 2)
        if bias is None:
            return torch.bmm(rows, weight)
        if rows.device.type == "cpu":
            return torch.baddbmm(bias.unsqueeze(1), rows, weight)
        outputs: Tensor = LinearFunction.apply(rows, self.weight, bias)  # type: ignore[no-untyped-call]
        return outputs


class _LinearChain(nn.Sequential):
    """Linear layers with only activations between them."""

    def forward(self, values: Tensor) -> Tensor:
        if values.is_cuda and has_triton() and not torch.compiler.is_compiling():
            from clew.training.packs.kernels import chain

            layers = [layer for layer in self.modules() if isinstance(layer, _StackedLinear)]
            weights = [getattr(layer, name) for layer in layers for name in ("weight", "bias")]
            if chain.supports(values, weights):
                buffers = [buffer for layer in layers for buffer in layer.claimable_buffers()]
                function: Any = chain.LinearChainFunction.apply
                activations = tuple(layer.activation for layer in layers)
                return cast(Tensor, function(values, activations, buffers, *weights))
        sequential_forward: Any = super().forward
        return cast(Tensor, sequential_forward(values))


def _merge_chains(model: nn.Module) -> nn.Module:
    """Replace each sequence of linear layers and activations by a chain."""
    for name, layer in list(model.named_modules()):
        if type(layer) is nn.Sequential and _is_chain(layer):
            chain = _LinearChain(OrderedDict(layer.named_children()))
            if not name:
                return chain
            model.set_submodule(name, chain)
    return model


def _is_chain(model: nn.Module) -> bool:
    inner = [layer for layer in model.modules() if not isinstance(layer, nn.Sequential)]
    linear = [layer for layer in inner if isinstance(layer, _StackedLinear) and "bias" in layer._parameter_names]
    without_effect = [
        layer
        for layer in inner
        if isinstance(layer, nn.Identity) or (isinstance(layer, StackedDropout) and layer.inactive)
    ]
    return len(linear) > 1 and len(linear) + len(without_effect) == len(inner)


_ACTIVATION_NAMES = {nn.ReLU: "relu", nn.ELU: "elu", nn.Tanh: "tanh", nn.Sigmoid: "sigmoid"}
_ACTIVATION_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu, "elu": f.elu, "tanh": torch.tanh, "sigmoid": torch.sigmoid
}  # fmt: skip
"""Activations that a linear layer can apply itself."""


@cache
def has_triton() -> bool:
    """Return whether Triton is installed."""
    return importlib.util.find_spec("triton") is not None


def _merge_activations(model: nn.Module) -> None:
    """Move activations into the linear layers before them, where layers follow each other."""
    for sequence in [layer for layer in model.modules() if isinstance(layer, nn.Sequential)]:
        for place, (layer, following) in enumerate(itertools.pairwise(list(sequence))):
            default_alpha = not isinstance(following, nn.ELU) or following.alpha == 1.0
            if isinstance(layer, _StackedLinear) and type(following) in _ACTIVATION_NAMES and default_alpha:
                layer.activation = _ACTIVATION_NAMES[type(following)]
                sequence[place + 1] = nn.Identity()


class _StackedBatchNorm(_StackedLayer):
    """Batch norm of (members, events, features). For torch, the features of all members are features of one model."""

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor
    weight: Tensor
    bias: Tensor

    def forward(self, values: Tensor) -> Tensor:
        members, events, features = values.shape
        affine = self._settings["affine"]
        normalized = f.batch_norm(
            values.transpose(0, 1).reshape(events, members * features),
            self.running_mean.view(-1),
            self.running_var.view(-1),
            self.weight.reshape(-1) if affine else None,
            self.bias.reshape(-1) if affine else None,
            self.training,
            self._settings["momentum"],
            self._settings["eps"],
        )
        if self.training:
            self.num_batches_tracked.add_(1)
        return normalized.view(events, members, features).transpose(0, 1)


class _StackedLayerNorm(_StackedLayer):
    weight: Tensor
    bias: Tensor

    def forward(self, values: Tensor) -> Tensor:
        normalized = f.layer_norm(values, self._settings["normalized_shape"], eps=self._settings["eps"])
        between = (1,) * (values.ndim - self.weight.ndim) if self._parameter_names else ()
        for name in self._parameter_names:
            parameter = getattr(self, name)
            parameter = parameter.view(parameter.shape[0], *between, *parameter.shape[1:])
            normalized = normalized * parameter if name == "weight" else normalized + parameter
        return normalized


def _stacked_flatten(layer: nn.Flatten) -> nn.Module:
    first, last = layer.start_dim, layer.end_dim
    return nn.Flatten(first + (first >= 0), last + (last >= 0))


def _stacked_softmax(layer: Any) -> nn.Module:
    assert layer.dim is not None
    stacked: nn.Module = type(layer)(layer.dim + (layer.dim >= 0))
    return stacked


def _stacked_batch_norm(layer: nn.BatchNorm1d) -> nn.Module:
    assert layer.track_running_stats and layer.momentum is not None
    return _StackedBatchNorm(layer)


_STACKED_FORMS: dict[type[nn.Module], Callable[[Any], nn.Module]] = {
    nn.Linear: _StackedLinear,
    nn.BatchNorm1d: _stacked_batch_norm,
    nn.LayerNorm: _StackedLayerNorm,
    nn.Flatten: _stacked_flatten,
    nn.Softmax: _stacked_softmax,
    nn.LogSoftmax: _stacked_softmax,
}


def make_stacked_model(model: nn.Module) -> nn.Module | None:
    """Return the same network for stacked weights, which `load_stack` sets; None if a layer has no stacked form."""
    stacked = copy.deepcopy(model)
    for name, layer in list(stacked.named_modules()):
        if type(layer) in _STACKED_FORMS:
            try:
                replacement = _STACKED_FORMS[type(layer)](layer)
            except AssertionError:
                return None
            if not name:
                return replacement
            stacked.set_submodule(name, replacement)
        elif not (list(layer.children()) or isinstance(layer, _ELEMENTWISE)) or list(layer.parameters(recurse=False)):
            return None
    _merge_activations(stacked)
    return _merge_chains(stacked)


def load_stack(model: nn.Module, stack: StackedWeights) -> None:
    """Set the weights, statistics and places of gradients of a stacked model, by their names in the plain network."""
    for name, tensor in {**stack.leaves, **stack.states}.items():
        layer_name, _, tensor_name = name.rpartition(".")
        cast(Any, model.get_submodule(layer_name))._buffers[tensor_name] = tensor
    for name, layer in model.named_modules():
        if isinstance(layer, _StackedLayer):
            names = {parameter: f"{name}.{parameter}" if name else parameter for parameter in layer._parameter_names}
            layer.gradient_buffers = {
                parameter: stack.gradient_buffers[full_name]
                for parameter, full_name in names.items()
                if full_name in stack.gradient_buffers
            }
