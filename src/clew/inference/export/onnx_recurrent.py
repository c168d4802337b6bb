"""Recurrent layers of torch for sequences of any length, in exported graphs.

torch.export follows `nn.GRU` and `nn.LSTM` step by step, which ties the graph to the length it saw. Here they are
traced as one operation each, which a program then has as torch's own and ONNX as its own.
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


_OWN = {"gru": torch.ops.clew.gru.default, "lstm": torch.ops.clew.lstm.default}
_TORCH = {"gru": torch.ops.aten.gru.input, "lstm": torch.ops.aten.lstm.input}


@contextlib.contextmanager
def trace_as_one_operation() -> Iterator[None]:
    """Within the block recurrent layers are traced as one operation."""

    def standing_in(name: str, torchs: Any) -> Any:
        packed = 2 if name == "gru" else 1  # where a tensor stands only for packed sequences

        def call(*given: Any) -> Any:
            if isinstance(given[packed], Tensor):
                return torchs(*given)
            states = list(given[1]) if name == "lstm" else given[1]
            return _OWN[name](given[0], states, list(given[2]), *given[3:])

        return call

    for name in _OWN:
        setattr(_VF, name, standing_in(name, getattr(_VF, name)))
    try:
        yield
    finally:
        for name in _OWN:
            delattr(_VF, name)


def restore_torch_operations(program: Any) -> Any:
    """A program traced by `trace_as_one_operation` with torch's operations in it: it needs no clew."""
    back = {own: _TORCH[name] for name, own in _OWN.items()}
    for node in program.graph.nodes:
        node.target = back.get(node.target, node.target)
    program.graph_module.recompile()
    return program


def onnx_translations() -> dict[Any, Any]:
    """What ONNX has for them, as `torch.onnx.export` wants it told."""
    from onnxscript.function_libs.torch_lib.ops import core

    return {_OWN["gru"]: core.aten_gru, _OWN["lstm"]: core.aten_lstm}
