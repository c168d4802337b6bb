"""Run by test_kernels.py: the Triton kernels of a pack, interpreted, against torch in double precision.

`check_kernels.py compile` compiles them for compute capability 9.0 instead, and prints bytes of machine code.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from clew.training.packs.kernels import adam as optimizer
from clew.training.packs.kernels import chain as chains
from clew.training.packs.kernels import layer as layers
from clew.training.packs.stacked_weights import GradientBuffer
from tests.compiled import machine_code

FUNCTIONS: dict[str, Any] = {
    "": lambda z: z,
    "relu": torch.relu,
    "elu": torch.nn.functional.elu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
}


def layer(kind: str, models: int, events: int, inputs: int, outputs: int, *, shared: bool) -> float:
    """Return the largest error of a layer and its gradients. Weights are a part of a wider table, as in a stack."""
    table = torch.randn(models, 7 + outputs * (inputs + 1))
    weight, bias = (each.detach().requires_grad_() for each in _parts(table, inputs, outputs))
    inputs_of_one = torch.randn(1 if shared else models, events, inputs)
    x = inputs_of_one.expand(models, -1, -1).detach().requires_grad_()
    upstream = torch.randn(models, events, outputs)
    assert layers.supports(x, weight)
    buffers = [GradientBuffer(part) for part in _parts(torch.zeros_like(table), inputs, outputs)]
    y = layers.StackedLinearFunction.apply(x, weight, bias, kind, buffers)  # type: ignore[no-untyped-call]
    results = [y, *torch.autograd.grad(y, [x, weight, bias], upstream)]
    assert [buffer.release().data_ptr() for buffer in buffers] == [result.data_ptr() for result in results[2:]]
    return _largest_error(results, [x, weight, bias], [kind], upstream)


def _largest_error(
    results: Sequence[Tensor], arguments: Sequence[Tensor], kinds: Sequence[str], upstream: Tensor
) -> float:
    """Compare outputs and gradients with those of torch for layers in sequence."""
    doubles = [tensor.detach().double().requires_grad_() for tensor in arguments]
    values, weights = doubles[0], zip(doubles[1::2], doubles[2::2], strict=True)
    for kind, (weight, bias) in zip(kinds, weights, strict=True):
        values = FUNCTIONS[kind](torch.baddbmm(bias.unsqueeze(1), values, weight.transpose(1, 2)))
    expected = [values, *torch.autograd.grad(values, doubles, upstream.double())]
    return max(float(((a - b).abs().max() / b.abs().max()).detach()) for a, b in zip(results, expected, strict=True))


def chain(
    widths: Sequence[int], kinds: Sequence[str], models: int, events: int, *, shared: bool, claimed: bool
) -> float:
    """Return the same for layers in sequence; `claimed`: one place for gradients is not available."""
    table = torch.randn(models, 3 + sum((a + 1) * b for a, b in itertools.pairwise(widths)))
    places, weights = ([*_rows(each, widths)] for each in (torch.zeros_like(table), table))
    weights = [weight.detach().requires_grad_() for weight in weights]
    x = torch.randn(1 if shared else models, events, widths[0]).expand(models, -1, -1).detach().requires_grad_()
    assert chains.supports(x, weights) and not chains.supports(x, [*weights, torch.zeros(models, 5)])
    upstream, buffers = torch.randn(models, events, widths[-1]), [GradientBuffer(place) for place in places]
    if claimed:
        buffers[-1].claim()
    y = chains.LinearChainFunction.apply(x, tuple(kinds), buffers, *weights)  # type: ignore[no-untyped-call]
    results = [y, *torch.autograd.grad(y, [x, *weights], upstream)]
    in_place = [result.data_ptr() == place.data_ptr() for result, place in zip(results[2:], places, strict=True)]
    assert in_place == [not claimed] * len(places)
    return _largest_error(results, [x, *weights], kinds, upstream)


def _rows(table: Tensor, widths: Sequence[int]) -> list[Tensor]:
    """Return weights and biases in sequence, from the fourth column on."""
    parts, first = [], 3
    for inputs, outputs in itertools.pairwise(widths):
        last = first + inputs * outputs
        parts += [table[:, first:last].view(len(table), outputs, inputs), table[:, last : last + outputs]]
        first = last + outputs
    return parts


def _parts(table: torch.Tensor, inputs: int, outputs: int) -> tuple[torch.Tensor, torch.Tensor]:
    cut = 3 + outputs * inputs
    return table[:, 3:cut].view(len(table), outputs, inputs), table[:, cut : cut + outputs]


def adam(decoupled: bool) -> float:
    """Return the largest error of four steps, with separate settings for each model."""
    models, parameters, error = 3, 1500, 0.0
    weights = torch.randn(models, parameters)
    state = [torch.zeros_like(weights) for _ in range(2)]
    rates, decay, beta1, beta2, eps = (torch.tensor(each).unsqueeze(1) for each in (
        [1e-3, 1e-2, 5e-3], [0.0, 0.1, 0.01], [0.9, 0.8, 0.95], [0.999, 0.99, 0.9], [1e-8, 1e-7, 1e-6]))  # fmt: skip
    kind: Any = torch.optim.AdamW if decoupled else torch.optim.Adam
    plain = [row.clone().double().requires_grad_() for row in weights]
    settings = zip(*(each.view(-1).tolist() for each in (rates, decay, beta1, beta2, eps)), strict=True)
    optimizers = [
        kind([row], lr=lr, weight_decay=d, betas=(b1, b2), eps=e)
        for row, (lr, d, b1, b2, e) in zip(plain, settings, strict=True)
    ]
    for number in range(1, 5):
        gradients = torch.randn(models, parameters)
        scalars = torch.stack([rates[:, 0], 1 - beta1[:, 0] ** number, (1 - beta2[:, 0] ** number).sqrt(), rates[:, 0]])
        for row, torch_optimizer, gradient in zip(plain, optimizers, gradients, strict=True):
            row.grad = gradient.double()
            torch_optimizer.step()
        tables = optimizer.AdamTables(weights, gradients.clone(), state, [decay, beta1, beta2, eps])
        optimizer.adam(tables, scalars, decays=True, decoupled=decoupled)
        error = max(error, float((weights - torch.stack(plain)).abs().max()))
    return error


def compile_kernels() -> dict[str, int]:
    sizes = {"KIND": 1, "EVENTS": 64, "INPUTS": 64, "OUTPUTS": 64}
    chain_sizes = {
        "WIDTHS": (15, 64, 5), "PADDED": (16, 64, 16), "PLACES": (0, 960, 1024, 1344), "KINDS": (1, 0),
        "BEFORE": (0, 64), "EVENTS": 64,
    }  # fmt: skip
    kernels: dict[Any, tuple[list[str], dict[str, Any]]] = {
        layers.forward_kernel: ([*["*fp32"] * 4, *["i32"] * 6], sizes),
        layers.backward_kernel: ([*["*fp32"] * 7, *["i32"] * 7], {**sizes, "X_GRADIENT": True}),
        chains.chain_kernel: ([*["*fp32"] * 4, *["i32"] * 3], chain_sizes),
        chains.chain_backward_kernel: ([*["*fp32"] * 7, *["i32"] * 3], {**chain_sizes, "X_GRADIENT": False}),
        optimizer.adam_kernel: ([*["*fp32"] * 9, *["i32"] * 2], {"DECAYS": True, "DECOUPLED": False, "BLOCK": 1024}),
    }
    return machine_code(kernels)


if __name__ == "__main__":
    torch.manual_seed(1)
    if sys.argv[1:] == ["compile"]:
        print(json.dumps(compile_kernels()))
    else:
        shapes = ((2, 70, 15, 20, True), (3, 16, 33, 5, False))
        errors = {
            f"{kind} {n}": layer(kind, *shape, shared=shared)
            for kind in FUNCTIONS
            for n, (*shape, shared) in enumerate(shapes)
        }
        errors["chain"] = chain((15, 64, 64, 5), ("relu", "relu", ""), 2, 50, shared=True, claimed=False)
        errors["other chain"] = chain((7, 20, 33, 2), ("elu", "tanh", "sigmoid"), 3, 16, shared=False, claimed=True)
        print(json.dumps(errors | {"adam": adam(False), "adamw": adam(True)}))
