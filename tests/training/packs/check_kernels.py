"""Run by test_packed_kernels.py: what Triton does of a pack, interpreted, against torch in double precision.

python check_packed_kernels.py compile: for compute capability 9.0 instead; prints bytes of machine code.
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
from clew.training.packs.stacked_weights import Lent
from tests.compiled import machine_code

ACTIVE: dict[str, Any] = {
    "": lambda z: z,
    "relu": torch.relu,
    "elu": torch.nn.functional.elu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
}


def layer(kind: str, models: int, events: int, inputs: int, outputs: int, *, shared: bool) -> float:
    """The largest difference of a layer and its gradients; weights are a part of a wider table, as in a stack."""
    table = torch.randn(models, 7 + outputs * (inputs + 1))
    weight, bias = (each.detach().requires_grad_() for each in _parts(table, inputs, outputs))
    own = torch.randn(1 if shared else models, events, inputs)
    x = own.expand(models, -1, -1).detach().requires_grad_()
    upstream = torch.randn(models, events, outputs)
    assert layers.fits(x, weight)
    lent = [Lent(each) for each in _parts(torch.zeros_like(table), inputs, outputs)]
    y = layers.Layer.apply(x, weight, bias, kind, lent)  # type: ignore[no-untyped-call]
    found = [y, *torch.autograd.grad(y, [x, weight, bias], upstream)]
    assert [each.free().data_ptr() for each in lent] == [each.data_ptr() for each in found[2:]]
    return _furthest(found, [x, weight, bias], [kind], upstream)


def _furthest(found: Sequence[Tensor], given: Sequence[Tensor], kinds: Sequence[str], upstream: Tensor) -> float:
    """From what torch gives for layers one after the other: the outputs and all gradients."""
    wide = [each.detach().double().requires_grad_() for each in given]
    plain, weights = wide[0], zip(wide[1::2], wide[2::2], strict=True)
    for kind, (weight, bias) in zip(kinds, weights, strict=True):
        plain = ACTIVE[kind](torch.baddbmm(bias.unsqueeze(1), plain, weight.transpose(1, 2)))
    wanted = [plain, *torch.autograd.grad(plain, wide, upstream.double())]
    return max(float(((a - b).abs().max() / b.abs().max()).detach()) for a, b in zip(found, wanted, strict=True))


def chain(widths: Sequence[int], kinds: Sequence[str], models: int, events: int, *, shared: bool, again: bool) -> float:
    """The same of layers one after the other; `again`: the places for their gradients are taken."""
    table = torch.randn(models, 3 + sum((a + 1) * b for a, b in itertools.pairwise(widths)))
    lent, given = ([*_rows(each, widths)] for each in (torch.zeros_like(table), table))
    given = [each.detach().requires_grad_() for each in given]
    x = torch.randn(1 if shared else models, events, widths[0]).expand(models, -1, -1).detach().requires_grad_()
    assert chains.fits(x, given) and not chains.fits(x, [*given, torch.zeros(models, 5)])
    upstream, places = torch.randn(models, events, widths[-1]), [Lent(each) for each in lent]
    if again:
        places[-1].take()
    y = chains.Chain.apply(x, tuple(kinds), places, *given)  # type: ignore[no-untyped-call]
    found = [y, *torch.autograd.grad(y, [x, *given], upstream)]
    written = [each.data_ptr() == own.data_ptr() for each, own in zip(found[2:], lent, strict=True)]
    assert written == [not again] * len(lent)
    return _furthest(found, [x, *given], kinds, upstream)


def _rows(table: Tensor, widths: Sequence[int]) -> list[Tensor]:
    """Weights and biases, one after the other, from the fourth column on."""
    found, first = [], 3
    for inputs, outputs in itertools.pairwise(widths):
        last = first + inputs * outputs
        found += [table[:, first:last].view(len(table), outputs, inputs), table[:, last : last + outputs]]
        first = last + outputs
    return found


def _parts(table: torch.Tensor, inputs: int, outputs: int) -> tuple[torch.Tensor, torch.Tensor]:
    cut = 3 + outputs * inputs
    return table[:, 3:cut].view(len(table), outputs, inputs), table[:, cut : cut + outputs]


def adam(apart: bool) -> float:
    """Of four steps, models with settings of their own."""
    models, parameters, worst = 3, 1500, 0.0
    weights = torch.randn(models, parameters)
    state = [torch.zeros_like(weights) for _ in range(2)]
    rates, decay, beta1, beta2, eps = (torch.tensor(each).unsqueeze(1) for each in (
        [1e-3, 1e-2, 5e-3], [0.0, 0.1, 0.01], [0.9, 0.8, 0.95], [0.999, 0.99, 0.9], [1e-8, 1e-7, 1e-6]))  # fmt: skip
    kind: Any = torch.optim.AdamW if apart else torch.optim.Adam
    plain = [row.clone().double().requires_grad_() for row in weights]
    given = zip(*(each.view(-1).tolist() for each in (rates, decay, beta1, beta2, eps)), strict=True)
    theirs = [
        kind([row], lr=lr, weight_decay=d, betas=(b1, b2), eps=e)
        for row, (lr, d, b1, b2, e) in zip(plain, given, strict=True)
    ]
    for number in range(1, 5):
        gradients = torch.randn(models, parameters)
        scalars = torch.stack([rates[:, 0], 1 - beta1[:, 0] ** number, (1 - beta2[:, 0] ** number).sqrt(), rates[:, 0]])
        for row, own, gradient in zip(plain, theirs, gradients, strict=True):
            row.grad = gradient.double()
            own.step()
        optimizer.adam(weights, gradients.clone(), state, scalars, [decay, beta1, beta2, eps], decays=True, apart=apart)
        worst = max(worst, float((weights - torch.stack(plain)).abs().max()))
    return worst


def compiled() -> dict[str, int]:
    sizes = {"KIND": 1, "EVENTS": 64, "INPUTS": 64, "OUTPUTS": 64}
    chained = {
        "WIDTHS": (15, 64, 5), "PADDED": (16, 64, 16), "PLACES": (0, 960, 1024, 1344), "KINDS": (1, 0),
        "BEFORE": (0, 64), "EVENTS": 64,
    }  # fmt: skip
    given: dict[Any, tuple[list[str], dict[str, Any]]] = {
        layers._forward: ([*["*fp32"] * 4, *["i32"] * 6], sizes),
        layers._back: ([*["*fp32"] * 7, *["i32"] * 7], {**sizes, "WANTED": True}),
        chains._chain: ([*["*fp32"] * 4, *["i32"] * 3], chained),
        chains._chain_back: ([*["*fp32"] * 7, *["i32"] * 3], {**chained, "WANTED": False}),
        optimizer._adam: ([*["*fp32"] * 9, *["i32"] * 2], {"DECAYS": True, "APART": False, "BLOCK": 1024}),
    }
    return machine_code(given)


if __name__ == "__main__":
    torch.manual_seed(1)
    if sys.argv[1:] == ["compile"]:
        print(json.dumps(compiled()))
    else:
        shapes = ((2, 70, 15, 20, True), (3, 16, 33, 5, False))
        errors = {
            f"{kind} {n}": layer(kind, *shape, shared=shared)
            for kind in ACTIVE
            for n, (*shape, shared) in enumerate(shapes)
        }
        errors["chain"] = chain((15, 64, 64, 5), ("relu", "relu", ""), 2, 50, shared=True, again=False)
        errors["other chain"] = chain((7, 20, 33, 2), ("elu", "tanh", "sigmoid"), 3, 16, shared=False, again=True)
        print(json.dumps(errors | {"adam": adam(False), "adamw": adam(True)}))
