"""One-dimensional convolutions as convolutions of images with one row: onnxruntime is fast for images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

_CONVOLUTION = torch.ops.aten.convolution.default


def onnx_translations(program: Any) -> dict[Any, Any]:
    """The translation for `torch.onnx.export`, if all convolutions of a program are of this kind; else empty."""
    nodes = [node for node in program.run_decompositions().graph.nodes if node.target is _CONVOLUTION]
    return {_CONVOLUTION: _translation()} if nodes and all(map(_fits, nodes)) else {}


def _fits(node: Any) -> bool:
    """Whether it is one-dimensional, (samples, channels, positions), and not transposed."""
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
        tensors = [op.Unsqueeze(values, line), op.Unsqueeze(weight, line), *([] if bias is None else [bias])]
        result = op.Conv(
            *tensors,
            strides=[1, int(stride[0])],
            pads=[0, pad, 0, pad],
            dilations=[1, int(dilation[0])],
            group=groups,
            kernel_shape=[1, int(weight.shape[2])],
        )
        return op.Squeeze(result, line)

    return convolution
