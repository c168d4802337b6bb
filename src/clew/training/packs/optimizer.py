"""One optimiser for a table of weights with one row per member, with settings per member."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from clew.training.config import TrainConfig
from clew.training.optimizer import batch_size_scaling
from clew.training.packs.stacked_layers import has_triton

PACK_OPTIMIZERS = ("sgd", "adam", "adamw")
_SGD_DEFAULTS = {"momentum": 0.0, "dampening": 0.0, "nesterov": False}
_ADAM_DEFAULTS = {"betas": (0.9, 0.999), "eps": 1e-8}


def refusal_reason(config: TrainConfig) -> str:
    """Return why the optimiser of these settings cannot be used in a pack; '' if it can."""
    chosen = config.optimizer
    if chosen.name not in PACK_OPTIMIZERS:
        return f"train.optimizer.name is {chosen.name}, not one of {', '.join(PACK_OPTIMIZERS)}"
    unsupported = next((name for name in chosen.parameters if name not in _defaults(config)), None)
    return f"train.optimizer.parameters has '{unsupported}'" if unsupported else ""


def shared_settings(config: TrainConfig) -> list[Any]:
    """Return the settings of the optimiser that all members of a pack must share."""
    return [config.optimizer.name, bool(_parameters(config).get("nesterov", False))]


def _defaults(config: TrainConfig) -> dict[str, Any]:
    return _SGD_DEFAULTS if config.optimizer.name == "sgd" else _ADAM_DEFAULTS


def _parameters(config: TrainConfig) -> dict[str, Any]:
    return {**_defaults(config), **config.optimizer.parameters}


class PackOptimizer:
    """SGD with momentum, Adam or AdamW for `weights` (members, parameters), in place, with `gradients` of that shape.

    `scalars` (4, members) are the numbers of one step: the learning rate, the bias corrections of Adam's two means, and
    the number of the step. They are passed as a tensor, so that a step can be recorded once and replayed.
    """

    def __init__(self, weights: Tensor, gradients: Tensor, configs: Sequence[TrainConfig]) -> None:
        self.weights, self.gradients = weights, gradients
        self.name = configs[0].optimizer.name
        parameters = [_parameters(config) for config in configs]
        self.lr = [config.optimizer.lr * batch_size_scaling(config.optimizer, config.size) for config in configs]
        self._nesterov = bool(parameters[0].get("nesterov", False))
        state_tensors = 1 if self.name == "sgd" else 2
        if self.name == "sgd" and not any(each["momentum"] for each in parameters):
            state_tensors = 0
        self.state = [torch.zeros_like(weights) for _ in range(state_tensors)]
        """The momentum, or the means of the gradients and of their squares."""
        self.step = 0
        """The number of the current step, counted from 1."""
        self._numbers = {
            "decay": [config.optimizer.weight_decay for config in configs],
            "momentum": [float(each.get("momentum", 0.0)) for each in parameters],
            "damping": [1.0 - float(each["dampening"]) if each.get("momentum") else 1.0 for each in parameters],
            "beta1": [float(each["betas"][0]) if "betas" in each else 0.0 for each in parameters],
            "beta2": [float(each["betas"][1]) if "betas" in each else 0.0 for each in parameters],
            "eps": [float(each.get("eps", 0.0)) for each in parameters],
        }
        """Settings of each member by name."""
        self._prepare()

    def _prepare(self) -> None:
        columns = {name: self.weights.new_tensor(values).unsqueeze(1) for name, values in self._numbers.items()}
        self._decay, self._momentum, self._damping = columns["decay"], columns["momentum"], columns["damping"]
        self._beta1, self._beta2, self._eps = columns["beta1"], columns["beta2"], columns["eps"]
        self._has_decay = any(self._numbers["decay"])
        self._scratch = torch.empty_like(self.weights) if self.name != "sgd" else None
        self._rows_by_betas: dict[tuple[float, ...], list[int]] = {}
        for row, betas in enumerate(zip(*(self._numbers[n] for n in ("beta1", "beta2", "eps")), strict=True)):
            self._rows_by_betas.setdefault(betas, []).append(row)
        self._uses_kernel = self.weights.is_cuda and self.weights.dtype == torch.float32 and has_triton()
        self.unfused = self.weights.device.type != "cpu" and len(self._rows_by_betas) > 1
        """Whether Adam is computed step by step; else by torch's fused function."""

    def keep_members(self, rows: Tensor, weights: Tensor, gradients: Tensor) -> None:
        """Remove all members but these; their weights and gradients are in new tensors."""
        self.weights, self.gradients = weights, gradients
        self.state = [tensor[rows.to(tensor.device)].clone() for tensor in self.state]
        chosen = rows.tolist()
        self.lr = [self.lr[row] for row in chosen]
        self._numbers = {name: [values[row] for row in chosen] for name, values in self._numbers.items()}
        self._prepare()

    def scalars(self, first: int, factors: Tensor) -> Tensor:
        """Return the numbers of several steps, (steps, 4, members).

        Args:
            first: The number of the first step, counted from 0.
            factors: The factors of the learning rates, (steps, members).
        """
        double = torch.float64
        rates = factors.to(double) * torch.tensor(self.lr, dtype=double)
        numbers = torch.arange(first + 1, first + 1 + len(factors), dtype=double).unsqueeze(1)
        betas = [torch.tensor(self._numbers[name], dtype=double) for name in ("beta1", "beta2")]
        means, squares = (1 - beta**numbers for beta in betas)
        stacked = torch.stack([rates, means, squares.sqrt(), numbers.expand_as(rates)], dim=1)
        return stacked.to(self.weights.device, self.weights.dtype)

    @torch.no_grad()
    def apply(self, scalars: Tensor) -> None:
        """Perform one step."""
        rates, first, second, count = scalars.unsqueeze(2).unbind(0)
        if self.name == "sgd":
            self._sgd(rates)
            return
        if self._uses_kernel:
            self._kernel_adam(scalars)
            return
        if self._has_decay and self.name == "adamw":
            self.weights.mul_(1 - rates * self._decay)
        elif self._has_decay:
            self.gradients.addcmul_(self.weights, self._decay)
        if self.unfused:
            self._unfused_adam(rates, first, second)
        else:
            self._fused_adam(rates, count[0, 0].float())

    def _sgd(self, rates: Tensor) -> None:
        direction = self.gradients
        if self._has_decay:
            direction.addcmul_(self.weights, self._decay)
        if self.state:
            velocity = self.state[0]
            if self.step == 1:
                velocity.copy_(direction)  # torch does not dampen the first step
            else:
                velocity.mul_(self._momentum).addcmul_(direction, self._damping)
            direction = direction.addcmul_(velocity, self._momentum) if self._nesterov else velocity
        self.weights.addcmul_(direction, -rates)

    def _kernel_adam(self, scalars: Tensor) -> None:
        from clew.training.packs.kernels.adam import AdamTables, adam

        numbers = [self._decay, self._beta1, self._beta2, self._eps]
        tables = AdamTables(self.weights, self.gradients, self.state, numbers)
        adam(tables, scalars, decays=self._has_decay, decoupled=self.name == "adamw")

    def _unfused_adam(self, rates: Tensor, first: Tensor, second: Tensor) -> None:
        mean, square = self.state
        mean.lerp_(self.gradients, 1 - self._beta1)
        square.mul_(self._beta2).addcmul_(self.gradients * (1 - self._beta2), self.gradients)
        denominator = square.sqrt().div_(second).add_(self._eps)
        self.weights.addcdiv_(mean * (-rates / first), denominator)

    def _fused_adam(self, rates: Tensor, count: Tensor) -> None:
        """Compute steps from zero at a rate of 1, and add them multiplied by each member's rate."""
        steps, (mean, square) = self._scratch, self.state
        assert steps is not None
        steps.zero_()
        for (beta1, beta2, eps), rows in self._rows_by_betas.items():
            same_for_all = len(self._rows_by_betas) == 1
            tables = (
                [table] if same_for_all else [table[row] for row in rows]
                for table in (steps, self.gradients, mean, square)
            )
            moving, gradients, means, squares = tables
            counts = [count] * len(moving)
            fixed: Any = {"weight_decay": 0.0, "amsgrad": False, "maximize": False}
            torch._fused_adam_(
                moving, gradients, means, squares, [], counts, lr=1.0, beta1=beta1, beta2=beta2, eps=eps, **fixed
            )
        self.weights.addcmul_(steps, rates)
