"""Machine code of Triton kernels for an H200, compiled without a device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

KernelSignatures = Mapping[Any, tuple[list[str], Mapping[str, Any]]]
"""For each kernel: the types of its arguments, and its compile-time constants."""


def machine_code(signatures: KernelSignatures) -> dict[str, int]:
    """Bytes of machine code for compute capability 9.0, by the name of the kernel."""
    import triton
    from triton.backends.compiler import GPUTarget

    sizes = {}
    for kernel, (types, constants) in signatures.items():
        names = list(kernel.arg_names)
        kinds = {name: "constexpr" if name in constants else types[place] for place, name in enumerate(names)}
        source = triton.compiler.ASTSource(kernel, kinds, {(names.index(n),): v for n, v in constants.items()})
        compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
        sizes[kernel.__name__] = len(compiled.asm["cubin"])
    return sizes
