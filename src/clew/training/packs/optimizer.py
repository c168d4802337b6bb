"""One optimiser for a table of weights, a model a row, with settings of its own for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from clew.training.config import TrainConfig
from clew.training.engine import batch_size_scaling
from clew.training.packs.stacked_layers import has_triton

NAMES = ("sgd", "adam", "adamw")
_SGD = {"momentum": 0.0, "dampening": 0.0, "nesterov": False}
_ADAM = {"betas": (0.9, 0.999), "eps": 1e-8}


def refusal(config: TrainConfig) -> str:
    """Why the optimiser of these settings cannot be one of many; '' where it can."""
    chosen = config.optimizer
    if chosen.name not in NAMES:
        return f"train.optimizer.name is {chosen.name}, not one of {', '.join(NAMES)}"
    known = _SGD if chosen.name == "sgd" else _ADAM
    odd = next((name for name in chosen.parameters if name not in known), None)
    return f"train.optimizer.parameters has '{odd}'" if odd else ""


def alike(config: TrainConfig) -> list[Any]:
    """What models of one pack must share."""
    return [config.optimizer.name, bool(_given(config).get("nesterov", False))]


def _given(config: TrainConfig) -> dict[str, Any]:
    known = _SGD if config.optimizer.name == "sgd" else _ADAM
    return {**known, **config.optimizer.parameters}


class Rows:
    """SGD with momentum, Adam or AdamW of `weights` (models, parameters), in place, with gradients in `gradients`.

    `scalars` (4, models) are the numbers of a step: learning rate, Adam's corrections of its two means, and the number
    of the step. They are handed over as a tensor, so that a step can be recorded once and replayed.
    """

    def __init__(self, weights: Tensor, gradients: Tensor, configs: Sequence[TrainConfig]) -> None:
        self.weights, self.gradients = weights, gradients
        self.name = configs[0].optimizer.name
        given = [_given(each) for each in configs]
        self.lr = [each.optimizer.lr * batch_size_scaling(each.optimizer, each.size) for each in configs]
        self._nesterov = bool(given[0].get("nesterov", False))
        kept = 1 if self.name == "sgd" else 2
        if self.name == "sgd" and not any(each["momentum"] for each in given):
            kept = 0
        self.state = [torch.zeros_like(weights) for _ in range(kept)]
        """Momentum, or the means of gradients and of their squares."""
        self.step = 0
        """The number of the step under way, counted from 1."""
        self._numbers = {
            "decay": [each.optimizer.weight_decay for each in configs],
            "momentum": [float(each.get("momentum", 0.0)) for each in given],
            "damping": [1.0 - float(each["dampening"]) if each.get("momentum") else 1.0 for each in given],
            "beta1": [float(each["betas"][0]) if "betas" in each else 0.0 for each in given],
            "beta2": [float(each["betas"][1]) if "betas" in each else 0.0 for each in given],
            "eps": [float(each.get("eps", 0.0)) for each in given],
        }
        self._ready()

    def _ready(self) -> None:
        made = {name: self.weights.new_tensor(values).unsqueeze(1) for name, values in self._numbers.items()}
        self._decay, self._momentum, self._damping = made["decay"], made["momentum"], made["damping"]
        self._beta1, self._beta2, self._eps = made["beta1"], made["beta2"], made["eps"]
        self._decays = any(self._numbers["decay"])
        self._scratch = torch.empty_like(self.weights) if self.name != "sgd" else None
        sets: dict[tuple[float, ...], list[int]] = {}
        for row, key in enumerate(zip(*(self._numbers[n] for n in ("beta1", "beta2", "eps")), strict=True)):
            sets.setdefault(key, []).append(row)
        self._sets = sets
        self._by_kernel = self.weights.is_cuda and self.weights.dtype == torch.float32 and has_triton()
        self.plain = self.weights.device.type != "cpu" and len(sets) > 1
        """Whether Adam is written out; else torch's fused form does it."""

    def keep(self, places: Tensor, weights: Tensor, gradients: Tensor) -> None:
        """Only these rows are left, in other tensors."""
        self.weights, self.gradients = weights, gradients
        self.state = [each[places.to(each.device)].clone() for each in self.state]
        chosen = places.tolist()
        self.lr = [self.lr[row] for row in chosen]
        self._numbers = {name: [values[row] for row in chosen] for name, values in self._numbers.items()}
        self._ready()

    def scalars(self, first: int, factors: Tensor) -> Tensor:
        """The numbers of some steps, (steps, 4, models), from the one numbered `first` (counted from 0) on; `factors`
        (steps, models) are those of the learning rates."""
        wide = torch.float64
        rates = factors.to(wide) * torch.tensor(self.lr, dtype=wide)
        done = torch.arange(first + 1, first + 1 + len(factors), dtype=wide).unsqueeze(1)
        betas = [torch.tensor(self._numbers[name], dtype=wide) for name in ("beta1", "beta2")]
        means, squares = (1 - beta**done for beta in betas)
        made = torch.stack([rates, means, squares.sqrt(), done.expand_as(rates)], dim=1)
        return made.to(self.weights.device, self.weights.dtype)

    @torch.no_grad()
    def apply(self, scalars: Tensor) -> None:
        """One step."""
        rates, first, second, count = scalars.unsqueeze(2).unbind(0)
        if self.name == "sgd":
            self._sgd(rates)
            return
        if self._by_kernel:
            self._kernel(scalars)
            return
        if self._decays and self.name == "adamw":
            self.weights.mul_(1 - rates * self._decay)
        elif self._decays:
            self.gradients.addcmul_(self.weights, self._decay)
        if self.plain:
            self._adam(rates, first, second)
        else:
            self._fused(rates, count[0, 0].float())

    def _sgd(self, rates: Tensor) -> None:
        moved = self.gradients
        if self._decays:
            moved.addcmul_(self.weights, self._decay)
        if self.state:
            kept = self.state[0]
            if self.step == 1:
                kept.copy_(moved)  # as torch begins it: undamped
            else:
                kept.mul_(self._momentum).addcmul_(moved, self._damping)
            moved = moved.addcmul_(kept, self._momentum) if self._nesterov else kept
        self.weights.addcmul_(moved, -rates)

    def _kernel(self, scalars: Tensor) -> None:
        from clew.training.packs.kernels.adam import adam

        numbers = [self._decay, self._beta1, self._beta2, self._eps]
        given = (self.weights, self.gradients, self.state, scalars, numbers)
        adam(*given, decays=self._decays, apart=self.name == "adamw")

    def _adam(self, rates: Tensor, first: Tensor, second: Tensor) -> None:
        mean, square = self.state
        mean.lerp_(self.gradients, 1 - self._beta1)
        square.mul_(self._beta2).addcmul_(self.gradients * (1 - self._beta2), self.gradients)
        below = square.sqrt().div_(second).add_(self._eps)
        self.weights.addcdiv_(mean * (-rates / first), below)

    def _fused(self, rates: Tensor, count: Tensor) -> None:
        """From zero at a rate of one, and then so far along it as each model's own rate says."""
        moved, (mean, square) = self._scratch, self.state
        assert moved is not None
        moved.zero_()
        for (beta1, beta2, eps), rows in self._sets.items():
            whole = len(self._sets) == 1
            moving, seen, means, squares = (
                [each] if whole else [each[row] for row in rows] for each in (moved, self.gradients, mean, square)
            )
            steps = [count] * len(moving)
            fixed: Any = {"weight_decay": 0.0, "amsgrad": False, "maximize": False}
            torch._fused_adam_(
                moving, seen, means, squares, [], steps, lr=1.0, beta1=beta1, beta2=beta2, eps=eps, **fixed
            )
        self.weights.addcmul_(moved, rates)
