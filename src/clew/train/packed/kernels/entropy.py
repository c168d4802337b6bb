"""Cross-entropy of many events on a device, by Triton: a kernel there and a kernel back instead of two and three."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.overrides import TorchFunctionMode

MOST = 128
"""Classes."""
ROWS = 128
IGNORED = -100
_USUAL = {"weight": None, "size_average": None, "ignore_index": IGNORED, "reduce": None, "label_smoothing": 0.0}


@triton.jit
def _entropy(logits, target, losses, rows, classes, IGNORED: tl.constexpr, ROWS: tl.constexpr, CLASSES: tl.constexpr):
    row, c = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, CLASSES)
    there = (row < rows)[:, None] & (c < classes)[None, :]
    z = tl.load(logits + row[:, None].to(tl.int64) * classes + c[None, :], there, float("-inf"))
    true = tl.load(target + row, row < rows, 0)
    most = tl.max(z, 1)
    whole = most + tl.log(tl.sum(tl.exp(z - most[:, None]), 1))
    loss = whole - tl.sum(tl.where(c[None, :] == true[:, None], z, 0.0), 1)
    loss = tl.where((true < 0) | (true >= classes), float("nan"), loss)
    tl.store(losses + row, tl.where(true == IGNORED, 0.0, loss), row < rows)


@triton.jit
def _entropy_back(
    logits, target, slope, into, rows, classes, IGNORED: tl.constexpr, ROWS: tl.constexpr, CLASSES: tl.constexpr
):
    row, c = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, CLASSES)
    there = (row < rows)[:, None] & (c < classes)[None, :]
    at = row[:, None].to(tl.int64) * classes + c[None, :]
    z, true = tl.load(logits + at, there, float("-inf")), tl.load(target + row, row < rows, 0)
    shares = tl.exp(z - tl.max(z, 1)[:, None])
    found = shares / tl.sum(shares, 1)[:, None] - tl.where(c[None, :] == true[:, None], 1.0, 0.0)
    each = tl.where(true == IGNORED, 0.0, tl.load(slope + row, row < rows, 0.0))
    tl.store(into + at, found * each[:, None], there)


class CrossEntropy(torch.autograd.Function):
    """Of every event: `logits` (events, classes), `target` (events,)."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor) -> Tensor:
        rows, classes = logits.shape
        ctx.sizes = {"IGNORED": IGNORED, "ROWS": ROWS, "CLASSES": triton.next_power_of_2(classes)}
        losses = logits.new_empty(rows)
        _entropy[(triton.cdiv(rows, ROWS),)](logits, target, losses, rows, classes, **ctx.sizes)
        ctx.save_for_backward(logits, target)
        return losses

    @staticmethod
    def backward(ctx: Any, *given: Any) -> tuple[Tensor, None]:
        logits, target = ctx.saved_tensors
        rows, classes = logits.shape
        into = torch.empty_like(logits)
        slope = given[0].contiguous()
        _entropy_back[(triton.cdiv(rows, ROWS),)](logits, target, slope, into, rows, classes, **ctx.sizes)
        return into, None


class Fused(TorchFunctionMode):
    """Whoever asks torch for a cross-entropy meanwhile is given this one, where it is the same."""

    def __torch_function__(
        self, what: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if what is cross_entropy and fits(*args, **(kwargs or {})):
            found: Any = CrossEntropy.apply
            return found(*args[:2])
        return what(*args, **(kwargs or {}))


def fits(*given: Any, **more: Any) -> bool:
    """Whether a call of torch's cross_entropy is one of losses of every event, with nothing special."""
    if len(given) != 2 or more.get("weight") is not None or {**_USUAL, **more} != {**_USUAL, "reduction": "none"}:
        return False
    logits, target = given
    kinds = logits.dtype == torch.float32 and target.dtype == torch.int64
    rows = logits.ndim == 2 and target.shape == logits.shape[:1] and 1 < logits.shape[-1] <= MOST
    return bool(kinds and rows and logits.is_contiguous() and target.is_contiguous())
