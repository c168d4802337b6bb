"""Triton's kernels as an H200 would get them, without one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

KernelSignatures = Mapping[Any, tuple[list[str], Mapping[str, Any]]]
"""By kernel: the types of its arguments but those, behind them, that are known before it is compiled; and these."""


def machine_code(signatures: KernelSignatures) -> dict[str, int]:
    """Bytes of it for compute capability 9.0, by the kernel's name."""
    import triton
    from triton.backends.compiler import GPUTarget

    sizes = {}
    for kernel, (types, constants) in signatures.items():
        names = list(kernel.arg_names)
        kinds = {name: "constexpr" if name in constants else types[place] for place, name in enumerate(names)}
        source = triton.compiler.ASTSource(kernel, kinds, {(names.index(n),): v for n, v in constants.items()})
        made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
        sizes[kernel.__name__] = len(made.asm["cubin"])
    return sizes
