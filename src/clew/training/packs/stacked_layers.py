"""Layers that work on all models at once: every tensor has a first axis of models, as (models, events, ...).

What vmap does for any network, these do for plain ones in two thirds of the time: a bias is added within the product,
and no call passes through vmap. Whether a network is plain is found out by trying: see `clew.training.packs.engine`.
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

from clew.training.packs.dropout import LaneDropout
from clew.training.packs.stacked_weights import Lent, Stack

_EACH = (
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
    LaneDropout,
)
"""Layers that do the same to every value, whatever its place."""


class _Lifted(nn.Module):
    """A layer whose weights have an axis of models; they are put into it by name."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self._plain: Any = {name: value for name, value in vars(layer).items() if not name.startswith("_")}
        for name, _ in [*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False)]:
            self.register_buffer(name, None)
        self._names = [name for name, _ in layer.named_parameters(recurse=False)]
        self.slopes: Mapping[str, Lent] = {}


class Product(torch.autograd.Function):
    """A linear layer whose gradients come in the layout of its weights: on a device that saves a copy of each, which on
    a processor costs less than coming back to Python does."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(rows, weight)
        return torch.baddbmm(bias.unsqueeze(1), rows, weight.transpose(1, 2))

    @staticmethod
    def backward(ctx: Any, *given: Any) -> tuple[Tensor | None, Tensor, Tensor]:
        (slope,), (rows, weight) = given, ctx.saved_tensors
        back = torch.bmm(slope, weight) if ctx.needs_input_grad[0] else None
        return back, torch.bmm(slope.transpose(1, 2), rows), slope.sum(1)


class _Linear(_Lifted):
    """A linear layer, with the activation behind it if that was put into it (`_joined`)."""

    weight: Tensor
    bias: Tensor | None
    kind = ""

    def forward(self, values: Tensor) -> Tensor:
        rows = values if values.ndim == 3 else values.flatten(1, -2)
        bias = self.bias if "bias" in self._names else None
        if bias is not None and rows.is_cuda and has_triton():
            from clew.training.packs.kernels import layer

            if layer.fits(rows, self.weight):
                found = layer.Layer.apply(rows, self.weight, bias, self.kind, self.lent())  # type: ignore[no-untyped-call]
                return self._shaped(found, values)
        found = self._shaped(self._product(rows, bias), values)
        return _ACTIVE[self.kind](found) if self.kind else found

    def lent(self) -> list[Lent | None]:
        slopes = {} if torch.compiler.is_compiling() else self.slopes
        return [slopes.get(name) for name in ("weight", "bias")]

    @staticmethod
    def _shaped(found: Tensor, values: Tensor) -> Tensor:
        return found if values.ndim == 3 else found.view(*values.shape[:-1], found.shape[-1])

    def _product(self, rows: Tensor, bias: Tensor | None) -> Tensor:
        weight = self.weight.transpose(1, 2)
        if bias is None:
            return torch.bmm(rows, weight)
        if rows.device.type == "cpu":
            return torch.baddbmm(bias.unsqueeze(1), rows, weight)
        found: Tensor = Product.apply(rows, self.weight, bias)  # type: ignore[no-untyped-call]
        return found


class _Chain(nn.Sequential):
    """Linear layers with nothing but activations between them."""

    def forward(self, values: Tensor) -> Tensor:
        if values.is_cuda and has_triton() and not torch.compiler.is_compiling():
            from clew.training.packs.kernels import chain

            layers = [each for each in self.modules() if isinstance(each, _Linear)]
            given = [getattr(each, name) for each in layers for name in ("weight", "bias")]
            if chain.fits(values, given):
                lent = [each for layer in layers for each in layer.lent()]
                done: Any = chain.Chain.apply
                return cast(Tensor, done(values, tuple(each.kind for each in layers), lent, *given))
        plain: Any = super().forward
        return cast(Tensor, plain(values))


def _chained(model: nn.Module) -> nn.Module:
    """Make chains of what can be one."""
    for name, found in list(model.named_modules()):
        if type(found) is nn.Sequential and _is_chain(found):
            made = _Chain(OrderedDict(found.named_children()))
            if not name:
                return made
            model.set_submodule(name, made)
    return model


def _is_chain(model: nn.Module) -> bool:
    inner = [each for each in model.modules() if not isinstance(each, nn.Sequential)]
    layers = [each for each in inner if isinstance(each, _Linear) and "bias" in each._names]
    idle = [each for each in inner if isinstance(each, nn.Identity) or (isinstance(each, LaneDropout) and each.idle)]
    return len(layers) > 1 and len(layers) + len(idle) == len(inner)


_KINDS = {nn.ReLU: "relu", nn.ELU: "elu", nn.Tanh: "tanh", nn.Sigmoid: "sigmoid"}
_ACTIVE: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu, "elu": f.elu, "tanh": torch.tanh, "sigmoid": torch.sigmoid
}  # fmt: skip
"""Activations that a linear layer can do by itself."""


@cache
def has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def _joined(model: nn.Module) -> None:
    """Put activations into the linear layers before them, where layers follow each other."""
    for chain in [each for each in model.modules() if isinstance(each, nn.Sequential)]:
        for place, (layer, after) in enumerate(itertools.pairwise(list(chain))):
            usual = not isinstance(after, nn.ELU) or after.alpha == 1.0
            if isinstance(layer, _Linear) and type(after) in _KINDS and usual:
                layer.kind = _KINDS[type(after)]
                chain[place + 1] = nn.Identity()


class _BatchNorm(_Lifted):
    """Of (models, events, features): to torch, features of one model are as many more features."""

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor
    weight: Tensor
    bias: Tensor

    def forward(self, values: Tensor) -> Tensor:
        models, events, features = values.shape
        affine = self._plain["affine"]
        wide = f.batch_norm(
            values.transpose(0, 1).reshape(events, models * features),
            self.running_mean.view(-1),
            self.running_var.view(-1),
            self.weight.reshape(-1) if affine else None,
            self.bias.reshape(-1) if affine else None,
            self.training,
            self._plain["momentum"],
            self._plain["eps"],
        )
        if self.training:
            self.num_batches_tracked.add_(1)
        return wide.view(events, models, features).transpose(0, 1)


class _LayerNorm(_Lifted):
    weight: Tensor
    bias: Tensor

    def forward(self, values: Tensor) -> Tensor:
        found = f.layer_norm(values, self._plain["normalized_shape"], eps=self._plain["eps"])
        between = (1,) * (values.ndim - self.weight.ndim) if self._names else ()
        for name in self._names:
            own = getattr(self, name)
            own = own.view(own.shape[0], *between, *own.shape[1:])
            found = found * own if name == "weight" else found + own
        return found


def _flatten(layer: nn.Flatten) -> nn.Module:
    first, last = layer.start_dim, layer.end_dim
    return nn.Flatten(first + (first >= 0), last + (last >= 0))


def _softmax(layer: Any) -> nn.Module:
    assert layer.dim is not None
    made: nn.Module = type(layer)(layer.dim + (layer.dim >= 0))
    return made


def _plain_norm(layer: nn.BatchNorm1d) -> nn.Module:
    assert layer.track_running_stats and layer.momentum is not None
    return _BatchNorm(layer)


_LAYERS: dict[type[nn.Module], Callable[[Any], nn.Module]] = {
    nn.Linear: _Linear,
    nn.BatchNorm1d: _plain_norm,
    nn.LayerNorm: _LayerNorm,
    nn.Flatten: _flatten,
    nn.Softmax: _softmax,
    nn.LogSoftmax: _softmax,
}


def lift(model: nn.Module) -> nn.Module | None:
    """The same network on stacked weights, which are put into it by `fill`; None where a layer has no such form."""
    copied = copy.deepcopy(model)
    for name, layer in list(copied.named_modules()):
        if type(layer) in _LAYERS:
            try:
                made = _LAYERS[type(layer)](layer)
            except AssertionError:
                return None
            if not name:
                return made
            copied.set_submodule(name, made)
        elif not (list(layer.children()) or isinstance(layer, _EACH)) or list(layer.parameters(recurse=False)):
            return None
    _joined(copied)
    return _chained(copied)


def fill(lifted: nn.Module, stack: Stack) -> None:
    """Put stacked weights and statistics into it, by the names they have in the plain network, and say where gradients
    are wanted."""
    for name, tensor in {**stack.leaves, **stack.states}.items():
        owner, _, own = name.rpartition(".")
        cast(Any, lifted.get_submodule(owner))._buffers[own] = tensor
    for name, layer in lifted.named_modules():
        if isinstance(layer, _Lifted):
            names = {own: f"{name}.{own}" if name else own for own in layer._names}
            layer.slopes = {own: stack.slopes[whole] for own, whole in names.items() if whole in stack.slopes}
