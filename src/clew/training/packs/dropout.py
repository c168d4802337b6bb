"""Dropout with a rate and a seed a model.

Which values fall out is a hash of the model's seed, the step, the layer and the place in the tensor: a model's own
pattern does not depend on the company it is trained in, and nothing has to be remembered to go on from a checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

KINDS: dict[type[nn.Module], int] = {nn.Dropout: 0, nn.Dropout1d: 1, nn.Dropout2d: 2, nn.Dropout3d: 3}
"""And how many of the last dimensions fall out together."""
_BLOCK = 256
"""Steps whose keys are made together."""
_ODD = (0x7FEB352D, -2073254261)
"""Multipliers with few collisions (of a search by others for 32 bits)."""


class LaneDropout(nn.Module):
    """In place of torch's: `key`, `threshold` and `scale` are one number a model, () under vmap, (models,) else."""

    key: Tensor
    threshold: Tensor
    scale: Tensor

    def __init__(self, together: int) -> None:
        super().__init__()
        self._together = together
        self._known: dict[tuple[int, ...], Tensor] = {}
        self.idle = False
        """Whether no model has a rate: nothing is computed."""
        for name, kind in (("key", torch.int32), ("threshold", torch.int32), ("scale", torch.float32)):
            self.register_buffer(name, torch.zeros((), dtype=kind), persistent=False)

    def forward(self, values: Tensor) -> Tensor:
        if not self.training or self.idle:
            return values
        lanes = self.key.ndim
        shape = values.shape[lanes:]
        drawn = shape[: len(shape) - self._together] + (1,) * self._together
        ones = (1,) * len(drawn)
        mixed = self._places(tuple(drawn), values.device) ^ self.key.view(self.key.shape + ones)
        mixed.mul_(_ODD[0])
        mixed.bitwise_xor_((mixed >> 15) & 0x1FFFF)
        mixed.mul_(_ODD[1])
        mixed.bitwise_xor_((mixed >> 16) & 0xFFFF)
        stays = mixed <= self.threshold.view(self.threshold.shape + ones)
        kept: Tensor = values * (stays * self.scale.view(self.scale.shape + ones))
        return kept

    def _places(self, shape: tuple[int, ...], device: torch.device) -> Tensor:
        """A hash of every place in a tensor of one model."""
        if shape not in self._known:
            mixed = _hash(torch.arange(1, torch.Size(shape).numel() + 1))
            self._known[shape] = ((mixed & 0xFFFFFFFF) - (1 << 31)).to(torch.int32).view(shape).to(device)
        return self._known[shape]


def threshold_of(rate: float) -> tuple[int, float]:
    """The largest hash that stays, and what such values are multiplied by."""
    stays = 1.0 - rate
    return max(round(stays * 2**32) - 2**31 - 1, -(2**31)), 1.0 / stays if stays else 0.0


class Keys:
    """The keys of every step, (layers, models): made for many steps at a time."""

    def __init__(self, seeds: Sequence[int], layers: int) -> None:
        self._seeds = torch.tensor(seeds, dtype=torch.int64)
        self._layers, self._block, self._made = layers, -1, torch.empty(0)

    def at(self, step: int) -> Tensor:
        """Those of a step."""
        block, place = divmod(step, _BLOCK)
        if block != self._block:
            self._block, self._made = block, self._make(block * _BLOCK)
        return self._made[place]

    def keep(self, places: Tensor) -> None:
        """Only these models are left."""
        self._seeds, self._block = self._seeds[places], -1

    def _make(self, first: int) -> Tensor:
        steps = torch.arange(first, first + _BLOCK).view(-1, 1, 1)
        layers = torch.arange(1, self._layers + 1).view(1, -1, 1)
        mixed = _hash(_hash(self._seeds.view(1, 1, -1)) + _hash(steps * 1024 + layers))
        return (mixed & 0xFFFFFFFF).sub_(1 << 31).to(torch.int32)


def _hash(values: Tensor) -> Tensor:
    """Of whole numbers, to 62 bits; for a few of them."""
    for shift, odd in ((30, -4658895280553007687), (27, -7723592293110705685)):
        values = (values ^ ((values >> shift) & ((1 << (64 - shift)) - 1))) * odd
    return values ^ ((values >> 31) & ((1 << 33) - 1))


def rates(model: nn.Module) -> dict[str, float]:
    """The rate of every dropout layer there is."""
    return {name: float(_rate(each)) for name, each in model.named_modules() if type(each) in KINDS}


def _rate(layer: Any) -> float:
    return float(layer.p)


def replace(model: nn.Module, idle: set[str]) -> list[str]:
    """Put `LaneDropout` in the place of every dropout layer, and return where; those in `idle` do nothing."""
    found = [(name, KINDS[type(each)]) for name, each in model.named_modules() if type(each) in KINDS]
    for name, together in found:
        made = LaneDropout(together)
        made.idle, made.training = name in idle, model.training
        model.set_submodule(name, made)
    return [name for name, _ in found]
