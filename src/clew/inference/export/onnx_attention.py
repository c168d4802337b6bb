"""Masked attention of torch in ONNX, with fewer passes over all pairs than the translation of torch.onnx."""

from __future__ import annotations

from typing import Any

import torch

_ATTENTION = torch.ops.aten.scaled_dot_product_attention.default
_MASKED = -1e30


def onnx_translations(program: Any) -> dict[Any, Any]:
    """The translation for `torch.onnx.export`, if all attention in a program is of this kind; else empty."""
    nodes = [node for node in program.graph.nodes if node.target is _ATTENTION]
    return {_ATTENTION: _translation()} if nodes and all(map(_fits, nodes)) else {}


def _fits(node: Any) -> bool:
    """Whether the mask is boolean and the same for all queries: (events, heads or 1, 1, keys)."""
    if len(node.args) != 4 or node.kwargs or node.args[3] is None:
        return False
    mask, query = node.args[3].meta["val"], node.args[0].meta["val"]
    return bool(mask.dtype == torch.bool and mask.ndim == query.ndim == 4 and query.dtype == torch.float32) and (
        isinstance(mask.shape[2], int) and mask.shape[2] == 1 and isinstance(query.shape[3], int)
    )


def _translation() -> Any:
    from onnxscript import opset18

    op: Any = opset18

    def attention(query: Any, key: Any, value: Any, attn_mask: Any, **_: Any) -> Any:
        """Add the mask as one more component of every key, which every query multiplies by 1.

        A query whose keys are all masked gets 0, as in torch.
        """
        zero, one, three = (op.Constant(value_ints=[number]) for number in (0, 1, 3))
        nothing, whole = op.Constant(value_float=0.0), op.Constant(value_float=1.0)
        ones = op.Add(op.Mul(op.Slice(query, zero, one, three), nothing), whole)
        masked = op.Transpose(op.Where(attn_mask, nothing, op.Constant(value_float=_MASKED)), perm=[0, 1, 3, 2])
        masked = op.Add(op.Mul(op.Slice(key, zero, one, three), nothing), masked)
        scaled = op.Mul(key, op.Constant(value_float=float(int(query.shape[-1]) ** -0.5)))
        keys = op.Transpose(op.Concat(scaled, masked, axis=3), perm=[0, 1, 3, 2])
        weights = op.Softmax(op.MatMul(op.Concat(query, ones, axis=3), keys), axis=-1)
        any_seen = op.ReduceMax(op.Cast(attn_mask, to=1), three, keepdims=1)
        return op.Mul(op.MatMul(weights, value), any_seen)

    return attention
