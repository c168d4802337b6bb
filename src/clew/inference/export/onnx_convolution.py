"""Convolutions along one axis, as those over images one line high: onnxruntime has its fast kernels for images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

_CONVOLUTION = torch.ops.aten.convolution.default


def onnx_translations(program: Any) -> dict[Any, Any]:
    """How `torch.onnx.export` is to say them, where all convolutions of a program are of this kind; else nothing."""
    found = [node for node in program.run_decompositions().graph.nodes if node.target is _CONVOLUTION]
    return {_CONVOLUTION: _translation()} if found and all(map(_fits, found)) else {}


def _fits(node: Any) -> bool:
    """Whether it goes along one axis of (samples, channels, places), and not backwards."""
    return node.args[0].meta["val"].ndim == 3 and not node.args[6]


def _translation() -> Any:
    from onnxscript import opset18

    op: Any = opset18

    def convolution(
        values: Any,
        weight: Any,
        bias: Any,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        transposed: bool,
        output_padding: Sequence[int],
        groups: int,
    ) -> Any:
        line, pad = op.Constant(value_ints=[2]), int(padding[0])
        given = [op.Unsqueeze(values, line), op.Unsqueeze(weight, line), *([] if bias is None else [bias])]
        found = op.Conv(
            *given,
            strides=[1, int(stride[0])],
            pads=[0, pad, 0, pad],
            dilations=[1, int(dilation[0])],
            group=groups,
            kernel_shape=[1, int(weight.shape[2])],
        )
        return op.Squeeze(found, line)

    return convolution
