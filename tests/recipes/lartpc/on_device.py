"""Run by test_device.py in a process of its own, where Triton interprets or only compiles.

python on_device.py compare    (with TRITON_INTERPRET=1) every kernel against `portable`, prints the largest errors
python on_device.py compile    every kernel for compute capability 9.0, no device needed; prints bytes of machine code
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from torch.nn import functional as f

from clew.recipes.lartpc.kernels import device, first, later, lists, portable, slopes
from tests.recipes.lartpc.events import listed


def _error(found: Any, wanted: Any) -> float:
    return float((found.double() - wanted.double()).norm() / wanted.double().norm().clamp(min=1))


def compare(height: int, width: int, share: float) -> dict[str, float]:
    """Two blocks forward and back in float32; 0 and 1 where something must be equal."""
    images = torch.rand(2, height, width) * (torch.rand(2, height, width) < share)
    pixels, size = listed(images), (height, width)
    weights = [torch.randn(10, 1, 5, 5) / 5, torch.randn(10) / 5, torch.randn(32, 10, 5, 5) / 10, torch.randn(32) / 5]
    before = f.elu(weights[1])
    ours, plain = (each.pixels(*pixels, before, *weights[:2], *size) for each in (device, portable))
    active = plain[2].unsqueeze(3)
    found = {"y": _error(ours[0], plain[0]), "active": float((ours[2] != plain[2]).sum())}
    found["winner"] = float((ours[1] != plain[1])[plain[2]].sum())
    gradient = torch.randn_like(plain[0])
    pair = (each.pixels_backward(gradient, *pixels, *plain, *size) for each in (device, portable))
    found |= {f"first {n}": _error(*both) for n, both in enumerate(zip(*pair, strict=True))}
    fill = f.elu(weights[3] + weights[2].sum(dim=(2, 3)) @ before)
    second = [each.cells(plain[0], plain[2], before, fill, *weights[2:]) for each in (device, portable)]
    found["later y"] = _error(second[0][0], second[1][0])
    gradient = torch.randn_like(second[1][0])
    given = (gradient, plain[0], plain[2], *second[1], weights[2])
    mine, theirs = (each.cells_backward(*given) for each in (device, portable))
    idle = (theirs[0] * ~active).sum(dim=(0, 1, 2))  # portable leaves there what device hands to `before`
    found |= {"later x": _error(mine[0] * active, theirs[0] * active), "later before": _error(mine[1], idle)}
    return found | {f"later {n}": _error(mine[n], theirs[n]) for n in (2, 3, 4)}


def compile_all() -> dict[str, int]:
    """Bytes of machine code of each kernel, as the network uses it in bf16."""
    import triton
    from triton.backends.compiler import GPUTarget

    half, byte, whole, word = "*bf16", "*u8", "*fp32", "*i32"
    sizes = {"CHANNELS": 10, "PADDED": 16, "OUTPUTS": 64}
    given: dict[Any, tuple[list[str], dict[str, int]]] = {
        lists.scatter: ([word, half, "*i64", half, byte, *["i32"] * 4], {"BLOCK": 1024}),
        lists.enlist: ([byte, word, word, "i32"], {"BLOCK": 1024}),
        slopes.back_through: ([half, half, byte, half, whole, *["i32"] * 3], {"PADDED": 16, "CELLS": 64}),
        first.pixels_forward: ([half, word, word, half, whole, half, byte, *["i32"] * 4], {"CELLS": 64}),
        first.pixels_learn: ([half, word, word, half, byte, whole, *["i32"] * 3], {"CELLS": 64}),
        later.cells_forward: ([half, word, word, half, whole, half, byte, *["i32"] * 4], {**sizes, "CELLS": 64}),
        later.cells_learn: ([half, word, word, half, byte, whole, *["i32"] * 4], {**sizes, "CELLS": 64}),
        later.cells_return: ([half, byte, word, word, half, half, whole, *["i32"] * 4], {**sizes, "PLACES": 64}),
    }
    found = {}
    for kernel, (types, constants) in given.items():
        names = list(kernel.arg_names)
        kinds = {name: "constexpr" if name in constants else types[place] for place, name in enumerate(names)}
        source = triton.compiler.ASTSource(kernel, kinds, {(names.index(n),): v for n, v in constants.items()})
        made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
        found[kernel.__name__] = len(made.asm["cubin"])
    return found


if __name__ == "__main__":
    torch.manual_seed(1)
    if sys.argv[1] == "compile":
        print(json.dumps(compile_all()))
    else:
        print(json.dumps([compare(33, 42, 0.01), compare(25, 26, 0.6), compare(25, 25, 0.0)]))
