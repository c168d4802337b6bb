"""Run by test_packed_kernels.py: what Triton does of a pack, interpreted, against torch in double precision.

python check_packed_kernels.py compile: for compute capability 9.0 instead; prints bytes of machine code.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

from clew.train.packed import kernels
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
    assert kernels.fits(x, weight)
    y = kernels.Layer.apply(x, weight, bias, kind)  # type: ignore[no-untyped-call]
    found = [y, *torch.autograd.grad((y * upstream).sum(), [x, weight, bias])]
    wide = [each.detach().double().requires_grad_() for each in (x, weight, bias)]
    plain = ACTIVE[kind](torch.baddbmm(wide[2].unsqueeze(1), wide[0], wide[1].transpose(1, 2)))
    wanted = [plain, *torch.autograd.grad((plain * upstream).sum(), wide)]
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(found, wanted, strict=True))


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
        for row, optimizer, gradient in zip(plain, theirs, gradients, strict=True):
            row.grad = gradient.double()
            optimizer.step()
        kernels.adam(weights, gradients.clone(), state, scalars, [decay, beta1, beta2, eps], decays=True, apart=apart)
        worst = max(worst, float((weights - torch.stack(plain)).abs().max()))
    return worst


def compiled() -> dict[str, int]:
    sizes = {"KIND": "relu", "EVENTS": 64, "INPUTS": 64, "OUTPUTS": 64}
    given: dict[Any, tuple[list[str], dict[str, Any]]] = {
        kernels._forward: ([*["*fp32"] * 4, *["i32"] * 6], sizes),
        kernels._back: ([*["*fp32"] * 7, *["i32"] * 5], {**sizes, "WANTED": True}),
        kernels._adam: ([*["*fp32"] * 9, *["i32"] * 2], {"DECAYS": True, "APART": False, "BLOCK": 1024}),
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
        print(json.dumps(errors | {"adam": adam(False), "adamw": adam(True)}))
