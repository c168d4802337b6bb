"""Run by test_gpu.py in a separate process, in which Triton interprets or only compiles.

python check_gpu.py compare    (with TRITON_INTERPRET=1) every kernel in bf16 against `portable` in float64; CUDA C++ by
                               `emulated`; prints errors
python check_gpu.py compile    every kernel of Triton for compute capability 9.0, no device needed; prints bytes of
                               machine code
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from torch.nn import functional as f

from clew.recipes.lartpc.kernels import cell_lists, elu_backward, gpu, pooling, portable
from tests.compiled import machine_code
from tests.recipes.lartpc import emulated
from tests.recipes.lartpc.events import listed


def _error(value: Any, expected: Any) -> float:
    return float((value.double() - expected.double()).norm() / expected.double().norm().clamp(min=1e-3))


def _half(tensor: Any) -> Any:
    """Random numbers that bf16 represents exactly."""
    return tensor.bfloat16().float()


def compare(height: int, width: int, share: float) -> dict[str, float]:
    """Three blocks forward and back: one on pixels, one on lists, one on whole images. Errors are those of norms."""
    images = _half(torch.rand(2, height, width) * (torch.rand(2, height, width) < share))
    (index, charge, offsets), size = listed(images), (height, width)
    half_pixels, exact = (index, charge.bfloat16(), offsets), (index, charge.double(), offsets)
    shapes = ((10, 1), (32, 10), (64, 32))
    weights = [_half(torch.randn(*shape, 5, 5) / 5 / shape[1] ** 0.5) for shape in shapes]
    biases = [torch.randn(shape[0]) / 5 for shape in shapes]
    before = f.elu(biases[0])
    y, winner, active, image = gpu.pixels(*half_pixels, before, weights[0], biases[0], *size)
    plain = portable.pixels(*exact, before.double(), weights[0].double(), biases[0].double(), *size)
    errors = {"active": float((active != plain[2]).sum()), "y": _error(y, plain[0])}
    errors["winners"] = float((winner != plain[1])[plain[2]].double().mean()) if plain[2].any() else 0.0
    gradient = torch.randn_like(y) * active.unsqueeze(3)
    gradients = gpu.pixels_backward(gradient, *half_pixels, y, winner, active, image, *size)
    shown = torch.where(active.unsqueeze(3), winner, 0)
    expected = portable.pixels_backward(gradient.double(), *exact, y.double(), shown, active, charge[:0], *size)
    errors |= {f"first {n}": _error(gradients[n], expected[n]) for n in (1, 2)}
    if min(y.shape[1:3]) < 5:
        return errors
    errors |= _listed(y, active, before, weights[1], biases[1])
    return errors | _dense(torch.randn(2, *y.shape[1:3], 32).bfloat16(), weights[2], biases[2])


def _listed(x: Any, active: Any, before: Any, weight: Any, bias: Any) -> dict[str, float]:
    fill, wide = f.elu(bias + weight.sum(dim=(2, 3)) @ before), weight.double()
    y, winner, y_active = gpu.cells(x, active, before, fill, weight, bias)
    plain = portable.cells(x.double(), active, before.double(), fill.double(), wide, bias.double())
    errors, gradient = (
        {"listed": float((plain[2] != y_active).sum()), "listed y": _error(y, plain[0])},
        torch.randn_like(y),
    )
    gradients = gpu.cells_backward(gradient, x, active, y, winner, y_active, weight)
    won, shown = torch.where(y_active.unsqueeze(3), winner, 0), active.unsqueeze(3)
    expected = portable.cells_backward(gradient.double(), x.double(), active, y.double(), won, y_active, wide)
    errors["listed x"] = _error(torch.where(shown, gradients[0], 0), torch.where(shown, expected[0], 0))
    idle, scale = (expected[0] * ~shown).sum(dim=(0, 1, 2)), expected[0].abs().sum(dim=(0, 1, 2)).norm()
    errors["listed before"] = float((gradients[1] - idle).norm() / scale.clamp(min=1e-3))
    return errors | {f"listed {n}": _error(gradients[n], expected[n]) for n in (2, 3, 4)}


def _dense(x: Any, weight: Any, bias: Any) -> dict[str, float]:
    everywhere, nothing = torch.ones(x.shape[:3], dtype=torch.bool), torch.zeros(1)
    y, winner = gpu.dense_block(x, weight, bias)
    plain = portable.cells(x.double(), everywhere, nothing, nothing.double(), weight.double(), bias.double())
    gradient = torch.randn_like(y)
    gradients = gpu.dense_block_backward(gradient, x, y, winner, weight)
    arguments = (gradient.double(), x.double(), everywhere, y.double(), winner, plain[2] | True, weight.double())
    expected = portable.cells_backward(*arguments)
    errors = {f"whole {n}": _error(gradients[n], expected[(0, 3, 4)[n]]) for n in range(3)}
    return errors | {"whole y": _error(y, plain[0])}


def compile_all() -> dict[str, int]:
    """Bytes of machine code of each kernel, as the network uses it in bf16."""
    half, byte, single, word = "*bf16", "*u8", "*fp32", "*i32"
    signatures: dict[Any, tuple[list[str], dict[str, int]]] = {
        cell_lists.scatter: ([word, half, "*i64", half, byte, *["i32"] * 2], {"BLOCK": 1024}),
        cell_lists.list_active: ([byte, word, word, "i32"], {"BLOCK": 1024}),
        cell_lists.fill_background: ([half, single, "i64", "i32"], {"CHANNELS": 16, "BLOCK": 1024}),
        cell_lists.arrange: ([single, word, half, *["i32"] * 2], {"BLOCK": 1024}),
        cell_lists.squares_with_active: ([byte, byte, *["i32"] * 6], {"SIDE": 9, "BEGIN": -2, "BLOCK": 128}),
        elu_backward.elu_backward: (
            [half, half, byte, half, single, single, *["i32"] * 2],
            {"PADDED": 64, "CELLS": 64},
        ),
        elu_backward.sum_border_gradients: ([half, byte, word, single, *["i32"] * 7], {"PADDED": 64, "CELLS": 16}),
        pooling.pool: ([half, single, half, byte, *["i32"] * 6], {"WIDE": 64, "CELLS": 8}),
        pooling.unpool: ([half, half, byte, half, single, *["i32"] * 6], {"WIDE": 64, "CELLS": 8}),
    }
    return machine_code(signatures)


if __name__ == "__main__":
    torch.manual_seed(1)
    if sys.argv[1] == "compile":
        print(json.dumps(compile_all()))
    else:
        setattr(gpu, "load_kernel", emulated.kernel)  # noqa: B010
        print(json.dumps([compare(70, 65, 0.004), compare(52, 48, 0.6), compare(27, 26, 0.0)]))
