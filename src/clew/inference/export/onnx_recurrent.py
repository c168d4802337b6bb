"""Recurrent layers of torch for sequences of any length, in exported graphs.

torch.export traces `nn.GRU` and `nn.LSTM` step by step, so the graph works for the traced length only. Here they are
traced as one operation each, which becomes the operation of torch in a program, and that of ONNX in an ONNX file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import _VF, Tensor


@torch.library.custom_op("clew::gru", mutates_args=())
def _gru(
    input: Tensor,
    hx: Tensor,
    params: list[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, Tensor]:
    more = (has_biases, num_layers, dropout, train, bidirectional, batch_first)
    outputs, hidden = torch.ops.aten.gru.input(input, hx, params, *more)
    return outputs, hidden


@_gru.register_fake
def _(input: Tensor, hx: Tensor, params: list[Tensor], *more: Any) -> tuple[Tensor, Tensor]:
    return input.new_empty((*input.shape[:2], hx.shape[2] * (1 + more[4]))), hx.new_empty(hx.shape)


@torch.library.custom_op("clew::lstm", mutates_args=())
def _lstm(
    input: Tensor,
    hx: list[Tensor],
    params: list[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    more = (has_biases, num_layers, dropout, train, bidirectional, batch_first)
    outputs, hidden, cell = torch.ops.aten.lstm.input(input, hx, params, *more)
    return outputs, hidden, cell


@_lstm.register_fake
def _(input: Tensor, hx: list[Tensor], params: list[Tensor], *more: Any) -> tuple[Tensor, Tensor, Tensor]:
    outputs = input.new_empty((*input.shape[:2], hx[0].shape[2] * (1 + more[4])))
    return outputs, hx[0].new_empty(hx[0].shape), hx[1].new_empty(hx[1].shape)


_CLEW_OPERATIONS = {"gru": torch.ops.clew.gru.default, "lstm": torch.ops.clew.lstm.default}
_TORCH_OPERATIONS = {"gru": torch.ops.aten.gru.input, "lstm": torch.ops.aten.lstm.input}


@contextlib.contextmanager
def trace_as_one_operation() -> Iterator[None]:
    """Within the block recurrent layers are traced as one operation."""

    def replacement(name: str, original: Any) -> Any:
        packed = 2 if name == "gru" else 1  # this argument is a tensor for packed sequences only

        def call(*arguments: Any) -> Any:
            if isinstance(arguments[packed], Tensor):
                return original(*arguments)
            states = list(arguments[1]) if name == "lstm" else arguments[1]
            return _CLEW_OPERATIONS[name](arguments[0], states, list(arguments[2]), *arguments[3:])

        return call

    for name in _CLEW_OPERATIONS:
        setattr(_VF, name, replacement(name, getattr(_VF, name)))
    try:
        yield
    finally:
        for name in _CLEW_OPERATIONS:
            delattr(_VF, name)


def restore_torch_operations(program: Any) -> Any:
    """Put torch's operations back into a program traced by `trace_as_one_operation`, so that it loads without clew."""
    back = {operation: _TORCH_OPERATIONS[name] for name, operation in _CLEW_OPERATIONS.items()}
    for node in program.graph.nodes:
        node.target = back.get(node.target, node.target)
    program.graph_module.recompile()
    return program


def onnx_translations() -> dict[Any, Any]:
    """The translations for `torch.onnx.export`."""
    from onnxscript.function_libs.torch_lib.ops import core

    return {_CLEW_OPERATIONS["gru"]: core.aten_gru, _CLEW_OPERATIONS["lstm"]: core.aten_lstm}
