"""Synchronous data parallelism: gradients are summed over all ranks before every step.

This is not DistributedDataParallel of torch, which averages means, wraps the model (a recipe could no longer call its
parts) and needs extra communication for a stop request or a loss. As there, gradients lie in flat buckets that are
summed while backward continues. The total and the weight of the loss are sent with the last bucket. Every rank gets the
exact gradient of the global mean, however unevenly the batch was divided. Ranks of one host that compute on the CPU do
not send gradients: their buckets are in shared memory (`host_sum`), and are summed after backward.
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
from clew.training.strategies.host_sum import HostSum, open_host_sum
from clew.training.strategies.process_group import SIGNALS, ProcessGroupStrategy

_FIRST_BUCKET, _BUCKET = 1 << 20, 25 << 20
"""Bytes of the first bucket, which is small so that the first sum starts early, and of the others."""
COMPRESSED = {"none": None, "bf16": torch.bfloat16, "fp16": torch.float16}


class AllReduce(ProcessGroupStrategy):
    """All-reduce, which overlaps with backward if there is more than one bucket."""

    settings = ("compress", "buffers")

    def __init__(self, *, compress: str = "none", buffers: str = "average", **place: Any) -> None:
        super().__init__(**place)
        self._compress, self.synchronizes_buffers = COMPRESSED[compress], buffers == "synchronize"
        self._buckets: dict[str, GradientBuckets] = {}
        self._recorded_seed = torch.ones((), device=self.device)
        """What recorded backward passes start with. A recording reads it anew when it is replayed."""
        in_memory = self.device.type == "cpu" and self._compress is None
        self._host_sum = open_host_sum(self.rank, self.gather) if in_memory else None

    def distribute(self, model: nn.Module) -> nn.Module:
        super().distribute(model)
        return synchronize_batch_norm(model, self) if self.synchronizes_buffers else model

    def backward(self, losses: Mapping[str, Loss], parameters: Parameters, *, last: bool) -> dict[str, LossSum]:
        """Run backward of each total into its buckets. In the last part, buckets are summed as they fill."""
        sums = {}
        for name, own_parameters in parameters.items():
            buckets = self._buckets_of(name, own_parameters)
            total, weight = losses[name]
            self.write_signals(buckets.signals)
            buckets.begin(total.detach(), float(weight), last=last)
            seed = backward_seed(1 / self.batch_samples, total)
            self.run_backward(total, own_parameters, seed, keep=len(parameters) > 1)
            if last:
                sums[name] = self._finish(buckets)
        return sums

    def can_record(self, choice: bool | str) -> bool:
        return (
            choice == "allreduce" and not self.synchronizes_buffers
        )  # statistics of batch norm are sent during forward

    def start_recorded_step(self) -> None:
        self._recorded_seed.fill_(1 / self.batch_samples)

    def record_backward(self, losses: Mapping[str, Loss], parameters: Parameters) -> dict[str, LossSum]:
        for name, own_parameters in parameters.items():
            for parameter in own_parameters:
                parameter.grad = None
            total = losses[name].total
            seed = self._recorded_seed.to(total.dtype)
            self.run_backward(total, own_parameters, seed, keep=len(parameters) > 1)
        return {name: LossSum(losses[name].total.detach(), losses[name].weight) for name in parameters}

    def combine_recorded(self, sums: Mapping[str, LossSum], parameters: Parameters) -> dict[str, LossSum]:
        """Sum the buckets one after the other, in the order in which `backward` does: another rank may use that."""
        combined = {}
        for name, own_parameters in parameters.items():
            buckets = self._buckets_of(name, own_parameters)
            self.write_signals(buckets.signals)
            buckets.take(sums[name])
            combined[name] = self._finish(buckets)
        return combined

    def _buckets_of(self, name: str, parameters: Sequence[nn.Parameter]) -> GradientBuckets:
        if name not in self._buckets:
            self._buckets[name] = GradientBuckets(parameters, self._compress, self._host_sum)
        return self._buckets[name]

    def _finish(self, buckets: GradientBuckets) -> LossSum:
        start = time.perf_counter()
        self._signals = buckets.finish(self.batch_samples)
        self.communication_seconds += time.perf_counter() - start
        return LossSum(self._signals[2], self._signals[3])


class GradientBuckets:
    """The gradients of some parameters, as views into a few flat buffers. The last layers come first.

    Buckets are sent strictly in their order, even if they fill in another order on some rank: collectives must match.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], compress: torch.dtype | None, host_sum: HostSum | None
    ) -> None:
        self._parameters, self._compress, self._host_sum = list(parameters), compress, host_sum
        groups = group_parameters(self._parameters)
        like = groups[-1][0]
        separate = compress is not None or like.dtype != torch.float32
        sizes = [(group[0].dtype, sum(parameter.numel() for parameter in group)) for group in groups]
        if separate:
            sizes.append((torch.float32, 0))
        sizes[-1] = (torch.float32, sizes[-1][1] + SIGNALS)
        self._shared = [] if host_sum is None else host_sum.allocate(sizes)
        buffers = [shared.own for shared in self._shared] or [
            torch.zeros(size, dtype=dtype, device=like.device) for dtype, size in sizes
        ]
        self._flat = buffers[: len(groups)]
        self.signals = buffers[-1][-SIGNALS:]
        """The numbers that are sent with the gradients; see `SIGNALS`."""
        self._signals_separate = separate
        self._views: dict[nn.Parameter, Tensor] = {}
        self._bucket_of: dict[nn.Parameter, int] = {}
        self._sizes = [len(group) for group in groups]
        for number, group in enumerate(groups):
            offset = 0
            for parameter in group:
                view = self._flat[number][offset : offset + parameter.numel()].view_as(parameter)
                self._views[parameter], self._bucket_of[parameter] = view, number
                offset += parameter.numel()
                if len(groups) > 1:
                    parameter.register_post_accumulate_grad_hook(self._gradient_ready)  # type: ignore[no-untyped-call]
        self._missing: list[int] = []
        self._sent: list[tuple[Any, Tensor, Tensor]] = []
        self._in_batch = self._in_last_part = False

    def begin(self, total: Tensor, weight: float, *, last: bool) -> None:
        """Prepare for the backward of one part of a batch."""
        if not self._in_batch:
            self.signals[2:].zero_()
            for parameter in self._parameters:
                parameter.grad = None  # the first gradient is taken as it is, not added to a buffer of zeros
        self.signals[2] += total
        self.signals[3] += weight
        self._in_batch, self._in_last_part, self._missing, self._sent = True, last, list(self._sizes), []

    def take(self, sums: LossSum) -> None:
        """Use the gradients that the parameters have as those of a whole batch. `finish` must follow."""
        self.signals[2], self.signals[3] = sums
        self._sent = []

    def finish(self, divisor: int) -> Tensor:
        """Sum what has not been summed yet after the last backward, and divide.

        Args:
            divisor: The number by which gradients were divided before. If it is the weight of the batch, a pass over
                the gradients is saved.

        Returns:
            The sums of the signals over all ranks.
        """
        self._in_last_part = False
        self._move_into_bucket([parameter for parameter, view in self._views.items() if parameter.grad is not view])
        if self._host_sum is None:
            self._sum_over_network()
        else:
            self._host_sum.sum(self._shared)
        sums = self.signals.clone()
        if sums.device.type != "cpu" or sums[3] != divisor:
            torch._foreach_mul_(self._flat, divisor / torch.where(sums[3] == 0, 1.0, sums[3]))
        self._in_batch = False
        return sums

    def _sum_over_network(self) -> None:
        """Send the buckets that have not been sent yet, and wait for all sums."""
        while len(self._sent) < len(self._flat):
            self._send(self._flat[len(self._sent)])
        signals_work = dist.all_reduce(self.signals, async_op=True) if self._signals_separate else None
        for work, sent, flat in self._sent:
            work.wait()
            if sent is not flat:
                flat.copy_(sent)
        if signals_work is not None:
            signals_work.wait()

    def _gradient_ready(self, parameter: Tensor) -> None:
        """Send the bucket of this gradient, and those that waited for it, if all buckets before them are sent."""
        if not self._in_last_part:
            return
        assert isinstance(parameter, nn.Parameter)
        self._move_into_bucket([parameter])
        if self._host_sum is not None:
            return
        self._missing[self._bucket_of[parameter]] -= 1
        while len(self._sent) < len(self._flat) - 1 and not self._missing[len(self._sent)]:
            self._send(self._flat[len(self._sent)])

    def _move_into_bucket(self, parameters: Sequence[nn.Parameter]) -> None:
        """Copy gradients into their bucket. A gradient that no loss depends on becomes zero."""
        present = [parameter for parameter in parameters if parameter.grad is not None]
        if present:
            torch._foreach_copy_([self._views[p] for p in present], [p.grad for p in present if p.grad is not None])
        for parameter in parameters:
            if parameter.grad is None:
                self._views[parameter].zero_()
            parameter.grad = self._views[parameter]

    def _send(self, flat: Tensor) -> None:
        sent = flat if self._compress is None else flat.to(self._compress)
        self._sent.append((dist.all_reduce(sent, async_op=True), sent, flat))


def group_parameters(parameters: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Divide parameters, in reverse order, into groups of one type that fill a bucket."""
    groups: list[list[nn.Parameter]] = []
    size, limit = 0, _FIRST_BUCKET
    for parameter in reversed(parameters):
        parameter_bytes = parameter.numel() * parameter.element_size()
        if not groups or groups[-1][0].dtype != parameter.dtype or size + parameter_bytes > limit:
            limit = _FIRST_BUCKET if not groups else _BUCKET
            groups.append([])
            size = 0
        groups[-1].append(parameter)
        size += parameter_bytes
    return groups
