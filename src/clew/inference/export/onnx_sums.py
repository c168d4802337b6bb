"""Sums at repeated places, in the one operation of ONNX that onnxruntime does one after the other.

torch.onnx makes `ScatterND` of them, whose additions onnxruntime shares among threads without a lock: where two threads
add at one place, one sum is lost.
"""

from __future__ import annotations

from typing import Any

import torch

from clew.errors import RecipeError

_INDEX_ADD = torch.ops.aten.index_add.default


def onnx_translations() -> dict[Any, Any]:
    """How `torch.onnx.export` is to say `index_add`."""
    from onnxscript import opset18

    op: Any = opset18

    def index_add(self: Any, dim: int, index: Any, source: Any, alpha: float = 1.0) -> Any:
        axis, rank = dim % len(source.shape), len(source.shape)
        column = [-1 if place == axis else 1 for place in range(rank)]
        places = op.Expand(op.Reshape(index, op.Constant(value_ints=column)), op.Shape(source))
        if alpha != 1:
            source = op.Mul(source, op.CastLike(op.Constant(value_float=float(alpha)), source))
        return op.ScatterElements(self, places, source, axis=axis, reduction="add")

    return {_INDEX_ADD: index_add}


def check_sums(model: Any) -> None:
    """Refuse a graph that onnxruntime would not always add up.

    Raises:
        RecipeError: it sums at repeated places by `ScatterND`.
    """
    for node in (*model.graph.node, *(node for function in model.functions for node in function.node)):
        if node.op_type == "ScatterND" and any(
            each.name == "reduction" and each.s == b"add" for each in node.attribute
        ):
            raise RecipeError(
                "it adds at repeated places by index_put, which onnxruntime's threads do not add up; use index_add"
            )
