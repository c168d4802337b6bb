"""Attention of torch with a mask of who can be seen, in fewer passes over all pairs than torch.onnx makes of it."""

from __future__ import annotations

from typing import Any

import torch

_ATTENTION = torch.ops.aten.scaled_dot_product_attention.default
_UNSEEN = -1e30


def onnx_translations(program: Any) -> dict[Any, Any]:
    """How `torch.onnx.export` is to say it, where all attention in a program is of this kind; else nothing."""
    found = [node for node in program.graph.nodes if node.target is _ATTENTION]
    return {_ATTENTION: _translation()} if found and all(map(_fits, found)) else {}


def _fits(node: Any) -> bool:
    """Whether the mask is of booleans, the same for all who look (events, heads or 1, 1, places), and nothing else."""
    if len(node.args) != 4 or node.kwargs or node.args[3] is None:
        return False
    seen, query = node.args[3].meta["val"], node.args[0].meta["val"]
    return bool(seen.dtype == torch.bool and seen.ndim == query.ndim == 4 and query.dtype == torch.float32) and (
        isinstance(seen.shape[2], int) and seen.shape[2] == 1 and isinstance(query.shape[3], int)
    )


def _translation() -> Any:
    from onnxscript import opset18

    op: Any = opset18

    def attention(query: Any, key: Any, value: Any, attn_mask: Any, **_: Any) -> Any:
        """The mask is one more component of every key, which all queries take once: the product adds it. Who sees
        nothing gets 0, as in torch."""
        zero, one, three = (op.Constant(value_ints=[number]) for number in (0, 1, 3))
        nothing, whole = op.Constant(value_float=0.0), op.Constant(value_float=1.0)
        ones = op.Add(op.Mul(op.Slice(query, zero, one, three), nothing), whole)
        hidden = op.Transpose(op.Where(attn_mask, nothing, op.Constant(value_float=_UNSEEN)), perm=[0, 1, 3, 2])
        hidden = op.Add(op.Mul(op.Slice(key, zero, one, three), nothing), hidden)
        scaled = op.Mul(key, op.Constant(value_float=float(int(query.shape[-1]) ** -0.5)))
        keys = op.Transpose(op.Concat(scaled, hidden, axis=3), perm=[0, 1, 3, 2])
        weights = op.Softmax(op.MatMul(op.Concat(query, ones, axis=3), keys), axis=-1)
        any_seen = op.ReduceMax(op.Cast(attn_mask, to=1), three, keepdims=1)
        return op.Mul(op.MatMul(weights, value), any_seen)

    return attention
