"""Dropout with a rate and a seed per member of a pack.

Which values are dropped is a hash of the member's seed, the step, the layer and the position in the tensor. So the
pattern of a member does not depend on the other members, and a checkpoint needs no state of dropout.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

DROPOUT_LAYERS: dict[type[nn.Module], int] = {nn.Dropout: 0, nn.Dropout1d: 1, nn.Dropout2d: 2, nn.Dropout3d: 3}
"""The dropout layers of torch, and how many of the last dimensions each drops together."""
_BLOCK = 256
"""Steps whose keys are computed together."""
_MULTIPLIERS = (0x7FEB352D, -2073254261)
"""Multipliers of a 32-bit hash with few collisions, from a published search."""


class StackedDropout(nn.Module):
    """Replaces a dropout layer of torch. `key`, `threshold` and `scale` are one number per member: of shape () under
    vmap, else of shape (members,)."""

    key: Tensor
    threshold: Tensor
    scale: Tensor

    def __init__(self, joint_dimensions: int) -> None:
        """Make a layer.

        Args:
            joint_dimensions: How many of the last dimensions are dropped together.
        """
        super().__init__()
        self._joint_dimensions = joint_dimensions
        self._position_hashes: dict[tuple[int, ...], Tensor] = {}
        self.inactive = False
        """Whether the rate is 0 for all members: then nothing is computed."""
        for name, kind in (("key", torch.int32), ("threshold", torch.int32), ("scale", torch.float32)):
            self.register_buffer(name, torch.zeros((), dtype=kind), persistent=False)

    def forward(self, values: Tensor) -> Tensor:
        if not self.training or self.inactive:
            return values
        shape = values.shape[self.key.ndim :]
        drawn = shape[: len(shape) - self._joint_dimensions] + (1,) * self._joint_dimensions
        ones = (1,) * len(drawn)
        mixed = self._positions(tuple(drawn), values.device) ^ self.key.view(self.key.shape + ones)
        mixed.mul_(_MULTIPLIERS[0])
        mixed.bitwise_xor_((mixed >> 15) & 0x1FFFF)
        mixed.mul_(_MULTIPLIERS[1])
        mixed.bitwise_xor_((mixed >> 16) & 0xFFFF)
        mask = mixed <= self.threshold.view(self.threshold.shape + ones)
        dropped: Tensor = values * (mask * self.scale.view(self.scale.shape + ones))
        return dropped

    def _positions(self, shape: tuple[int, ...], device: torch.device) -> Tensor:
        """Return a hash of every position in a tensor of one member."""
        if shape not in self._position_hashes:
            mixed = _hash(torch.arange(1, torch.Size(shape).numel() + 1))
            hashes = ((mixed & 0xFFFFFFFF) - (1 << 31)).to(torch.int32).view(shape).to(device)
            self._position_hashes[shape] = hashes
        return self._position_hashes[shape]


def dropout_threshold(rate: float) -> tuple[int, float]:
    """Return the largest hash of a value that is not dropped, and the factor of such values."""
    remaining = 1.0 - rate
    return max(round(remaining * 2**32) - 2**31 - 1, -(2**31)), 1.0 / remaining if remaining else 0.0


class DropoutKeys:
    """The keys of every step, (layers, members). They are computed for many steps at a time."""

    def __init__(self, seeds: Sequence[int], layers: int) -> None:
        self._seeds = torch.tensor(seeds, dtype=torch.int64)
        self._layers, self._block, self._keys = layers, -1, torch.empty(0)

    def at(self, step: int) -> Tensor:
        """Return the keys of a step."""
        block, place = divmod(step, _BLOCK)
        if block != self._block:
            self._block, self._keys = block, self._compute(block * _BLOCK)
        return self._keys[place]

    def keep_members(self, rows: Tensor) -> None:
        """Remove all members but these."""
        self._seeds, self._block = self._seeds[rows], -1

    def _compute(self, first: int) -> Tensor:
        steps = torch.arange(first, first + _BLOCK).view(-1, 1, 1)
        layers = torch.arange(1, self._layers + 1).view(1, -1, 1)
        mixed = _hash(_hash(self._seeds.view(1, 1, -1)) + _hash(steps * 1024 + layers))
        return (mixed & 0xFFFFFFFF).sub_(1 << 31).to(torch.int32)


def _hash(values: Tensor) -> Tensor:
    """Hash integers to 62 bits. Slow: for few of them."""
    for shift, multiplier in ((30, -4658895280553007687), (27, -7723592293110705685)):
        values = (values ^ ((values >> shift) & ((1 << (64 - shift)) - 1))) * multiplier
    return values ^ ((values >> 31) & ((1 << 33) - 1))


def dropout_rates(model: nn.Module) -> dict[str, float]:
    """Return the rate of every dropout layer by its name."""
    return {name: _rate(layer) for name, layer in model.named_modules() if type(layer) in DROPOUT_LAYERS}


def _rate(layer: Any) -> float:
    return float(layer.p)


def replace_dropout(model: nn.Module, inactive: set[str]) -> list[str]:
    """Replace every dropout layer by `StackedDropout`, and return their names; those in `inactive` do nothing."""
    layers = [
        (name, DROPOUT_LAYERS[type(layer)]) for name, layer in model.named_modules() if type(layer) in DROPOUT_LAYERS
    ]
    for name, joint_dimensions in layers:
        replacement = StackedDropout(joint_dimensions)
        replacement.inactive, replacement.training = name in inactive, model.training
        model.set_submodule(name, replacement)
    return [name for name, _ in layers]
