"""Synchronous data parallelism: gradients are summed over all ranks before every step.

Not torch's DistributedDataParallel: that averages means, wraps the model (a recipe could no longer call its parts) and
needs a pass of its own for a stop or a loss. Here gradients lie in flat buckets that are summed while backward goes on,
as there, and with the last of them travel the loss's total and weight: every rank gets the exact gradient of the global
mean, however unevenly the batch was shared.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from clew.recipe import Loss
from clew.training.strategies.base import LossSum, Parameters, backward_seed
from clew.training.strategies.batch_norm import synchronize_batch_norm
from clew.training.strategies.process_group import SIGNALS, ProcessGroupStrategy

_FIRST, _BYTES = 1 << 20, 25 << 20
"""Bytes of the first bucket, small so that the first sum starts early, and of the others."""
COMPRESSED = {"none": None, "bf16": torch.bfloat16, "fp16": torch.float16}


class AllReduce(ProcessGroupStrategy):
    """All-reduce, overlapped with backward where there is more than one bucket."""

    def __init__(self, *, compress: str = "none", buffers: str = "average", **place: Any) -> None:
        super().__init__(**place)
        self._compress, self._synchronize = COMPRESSED[compress], buffers == "synchronize"
        self._buckets: dict[str, GradientBuckets] = {}

    def place(self, model: nn.Module) -> nn.Module:
        super().place(model)
        return synchronize_batch_norm(model, self) if self._synchronize else model

    def backward(self, losses: Mapping[str, Loss], parameters: Parameters, *, last: bool) -> dict[str, LossSum]:
        """Backward of each total into its buckets, which are summed as they fill in the last part."""
        sums = {}
        for name, own in parameters.items():
            if name not in self._buckets:
                self._buckets[name] = GradientBuckets(own, self._compress)
            buckets = self._buckets[name]
            total, weight = losses[name]
            self.tell(buckets.tail)
            buckets.begin(total.detach(), float(weight), last=last)
            self.descend(total, own, backward_seed(1 / self.size, total), keep=len(parameters) > 1)
            if last:
                begun = time.perf_counter()
                self._told = buckets.finish(self.size)
                self.waited += time.perf_counter() - begun
                sums[name] = LossSum(self._told[2], self._told[3])
        return sums


class GradientBuckets:
    """The gradients of some parameters, as views into a few flat buffers, the last layers' first.

    Buckets are sent strictly in their order, on whichever rank they fill in another: collectives must match.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], compress: torch.dtype | None) -> None:
        self._parameters, self._compress = list(parameters), compress
        groups = _grouped(self._parameters)
        like = groups[-1][0]
        apart = compress is not None or like.dtype != torch.float32
        self._flat = [_buffer(group, 0 if apart or group is not groups[-1] else SIGNALS) for group in groups]
        self.tail = torch.zeros(SIGNALS, device=like.device) if apart else self._flat[-1][-SIGNALS:]
        self._apart = apart
        self._views: dict[nn.Parameter, Tensor] = {}
        self._bucket_of: dict[nn.Parameter, int] = {}
        self._sizes = [len(group) for group in groups]
        for number, group in enumerate(groups):
            place = 0
            for parameter in group:
                view = self._flat[number][place : place + parameter.numel()].view_as(parameter)
                self._views[parameter], self._bucket_of[parameter] = view, number
                place += parameter.numel()
                if len(groups) > 1:
                    parameter.register_post_accumulate_grad_hook(self._filled)  # type: ignore[no-untyped-call]
        self._left: list[int] = []
        self._sent: list[tuple[Any, Tensor, Tensor]] = []
        self._under_way = self._live = False

    def begin(self, total: Tensor, weight: float, *, last: bool) -> None:
        """Before the backward of a part."""
        if not self._under_way:
            self.tail[2:].zero_()
            for parameter in self._parameters:
                parameter.grad = None  # the first gradient is taken as it is, not added to a buffer of zeros
        self.tail[2] += total
        self.tail[3] += weight
        self._under_way, self._live, self._left, self._sent = True, last, list(self._sizes), []

    def finish(self, divided: int) -> Tensor:
        """After the backward of the last part: send what is left, wait for all, divide; the tail's sums.

        Gradients were `divided` by this before: where that is the weight of the batch, a pass over them is saved.
        """
        self._live = False
        self._settle([parameter for parameter, view in self._views.items() if parameter.grad is not view])
        while len(self._sent) < len(self._flat):
            self._send(self._flat[len(self._sent)])
        tail = dist.all_reduce(self.tail, async_op=True) if self._apart else None
        for work, sent, flat in self._sent:
            work.wait()
            if sent is not flat:
                flat.copy_(sent)
        if tail is not None:
            tail.wait()
        told = self.tail.clone()
        if told.device.type != "cpu" or told[3] != divided:
            torch._foreach_mul_(self._flat, divided / torch.where(told[3] == 0, 1.0, told[3]))
        self._under_way = False
        return told

    def _filled(self, parameter: Tensor) -> None:
        """A gradient is complete: send its bucket, and those that waited for it, if nothing is missing before."""
        if not self._live:
            return
        assert isinstance(parameter, nn.Parameter)
        self._settle([parameter])
        self._left[self._bucket_of[parameter]] -= 1
        while len(self._sent) < len(self._flat) - 1 and not self._left[len(self._sent)]:
            self._send(self._flat[len(self._sent)])

    def _settle(self, parameters: Sequence[nn.Parameter]) -> None:
        """Move gradients into their buckets; one that no loss depends on is zero."""
        there = [parameter for parameter in parameters if parameter.grad is not None]
        if there:
            torch._foreach_copy_([self._views[p] for p in there], [p.grad for p in there if p.grad is not None])
        for parameter in parameters:
            if parameter.grad is None:
                self._views[parameter].zero_()
            parameter.grad = self._views[parameter]

    def _send(self, flat: Tensor) -> None:
        sent = flat if self._compress is None else flat.to(self._compress)
        self._sent.append((dist.all_reduce(sent, async_op=True), sent, flat))


def _grouped(parameters: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Parameters of one type side by side, backwards, as many as fill a bucket."""
    groups: list[list[nn.Parameter]] = []
    size, limit = 0, _FIRST
    for parameter in reversed(parameters):
        bytes_ = parameter.numel() * parameter.element_size()
        if not groups or groups[-1][0].dtype != parameter.dtype or size + bytes_ > limit:
            limit = _FIRST if not groups else _BYTES
            groups.append([])
            size = 0
        groups[-1].append(parameter)
        size += bytes_
    return groups


def _buffer(group: Sequence[nn.Parameter], more: int) -> Tensor:
    first, size = group[0], sum(parameter.numel() for parameter in group)
    return torch.zeros(size + more, dtype=first.dtype, device=first.device)
