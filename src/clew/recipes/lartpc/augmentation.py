"""Random changes of the images of a training batch: shifts, mirror images, charge scale, dropped wires.

They work on lists of pixels, on the device of the batch. The number of pixels does not change and no number is read
from the device, so a step with them can be recorded: what leaves the image or lies on a dropped wire keeps a place of
its own and gets charge 0.

Random numbers are hashes of the seed, the epoch and the image itself. So they do not depend on the order of the
images, the number of ranks or a resume.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from clew import TrainingHooks, TrainingPlan
from clew.errors import ConfigError
from clew.recipes.lartpc.images import Size
from clew.recipes.lartpc.settings import LArTPCAugmentConfig

_STEP = -7046029254386353131
"""The odd constant of SplitMix64 as a signed number: it separates neighbouring numbers."""
_WIRES, _TICKS, _FLIP, _SCALE, _DROP = range(1, 6)
"""Numbers of the independent draws of an image."""


class Augmentation(nn.Module):
    """Changes images in training mode. In evaluation mode it returns them unchanged.

    Its buffers are not saved with the weights: `AugmentationHooks` sets them.

    Args:
        settings: How much the images are changed.
        size: Wires and ticks in which charge can be.
        columns: Ticks of an image to which the index refers; at least those of `size`.
    """

    seed: Tensor
    """The seed of the training."""
    epoch: Tensor
    """The epoch; in an asynchronous training the number of steps of the worker."""

    def __init__(self, settings: LArTPCAugmentConfig, size: Size, columns: int) -> None:
        super().__init__()
        self.settings, self.size, self.columns = settings, size, columns
        for name in ("seed", "epoch"):
            self.register_buffer(name, torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, index: Tensor, charge: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
        """Return index and charge of the changed images; see `ops.pixels` for the arguments.

        An index is no longer in order, and still stands once per image.
        """
        if not self.training or not index.shape[0]:
            return index, charge
        wires, ticks = self.size
        keys = _hash(image_keys(index, charge, offsets) + _hash(_hash(self.seed) + self.epoch))
        places = torch.arange(index.shape[0], device=index.device)
        image = torch.searchsorted(offsets[1:], places, right=True, out_int32=True).clamp(max=offsets.shape[0] - 2)
        wire, tick = index // self.columns, index % self.columns
        flipped = uniform(keys, _FLIP) < self.settings.flip_ticks
        tick = torch.where(flipped.index_select(0, image), ticks - 1 - tick, tick)
        wire = wire + _shift(keys, _WIRES, self.settings.shift_wires * wires).index_select(0, image)
        tick = tick + _shift(keys, _TICKS, self.settings.shift_ticks * ticks).index_select(0, image)
        inside = (wire >= 0) & (wire < wires) & (tick >= 0) & (tick < ticks)
        wire, tick = wire % wires, tick % ticks  # outside, a place that no other pixel of the image has
        factor = self._wire_factors(keys).view(-1).index_select(0, image * wires + wire) * inside
        return wire * self.columns + tick, charge * factor.to(charge.dtype)

    def _wire_factors(self, keys: Tensor) -> Tensor:
        """Return the factor of the charges of every wire (events, wires): 0 for dropped ones."""
        scale = 1 + self.settings.charge_scale * (2 * uniform(keys, _SCALE) - 1)
        wire_keys = keys[:, None] + _hash(torch.arange(self.size[0], device=keys.device))
        return scale[:, None] * (uniform(wire_keys, _DROP) >= self.settings.dropped_wires)


def image_keys(index: Tensor, charge: Tensor, offsets: Tensor) -> Tensor:
    """Return a number per image (events,), from its number of pixels and the first, middle and last of them."""
    first, end = offsets[:-1], offsets[1:]
    keys = _hash(end - first)
    for place in (first, (first + end) // 2, end - 1):
        place = place.clamp(0, index.shape[0] - 1)
        keys = _hash(keys + index[place])
        keys = _hash(keys + charge[place].float().view(torch.int32))
    return keys


def uniform(keys: Tensor, draw: int) -> Tensor:
    """Return a random number from 0 to 1 (exclusive) for each key, the same on every device. Draws are independent."""
    return (_hash(keys + draw) & 0xFFFFFF).to(torch.float32) / (1 << 24)


def _shift(keys: Tensor, draw: int, largest: float) -> Tensor:
    """Return a whole number between -largest and largest for each key, all equally likely."""
    reach = int(largest)
    return (uniform(keys, draw) * (2 * reach + 1)).int().clamp(max=2 * reach) - reach


def _hash(values: Tensor) -> Tensor:
    """Return the mixing function of SplitMix64 of int64 values. Products wrap around on all devices."""
    values = values.long() * _STEP
    for shift, multiplier in ((30, -4658895280553007687), (27, -7723592293110705685)):
        values = (values ^ ((values >> shift) & ((1 << (64 - shift)) - 1))) * multiplier
    return values ^ ((values >> 31) & ((1 << 33) - 1))


class AugmentationHooks(TrainingHooks):
    """Tells the augmentation of a network the seed and the epoch, and keeps the epoch in the states of a training."""

    def __init__(self, model: nn.Module, plan: TrainingPlan) -> None:
        self._modules = [each for each in model.modules() if isinstance(each, Augmentation)]
        self._asynchronous, self._epoch = plan.asynchronous, 0
        for module in self._modules:
            module.seed.fill_(plan.seed)

    def start_epoch(self, epoch: int) -> None:
        """Draw new random numbers."""
        self._epoch = epoch
        for module in self._modules:
            module.epoch.fill_(epoch)

    def end_step(self) -> Mapping[str, Tensor | float]:
        """Count steps as epochs if there are none."""
        if self._asynchronous:
            self.start_epoch(self._epoch + 1)
        return {}

    def state(self) -> dict[str, Any]:
        """Return the epoch: a training may be resumed in the middle of it."""
        return {"augmentation_epoch": self._epoch}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue in the epoch of the state."""
        self.start_epoch(int(state.get("augmentation_epoch", 0)))


def check_augmented(model: nn.Module) -> None:
    """Check that a network of another recipe augments its images.

    Raises:
        ConfigError: It has no `Augmentation`.
    """
    if not any(isinstance(each, Augmentation) for each in model.modules()):
        raise ConfigError(
            f"augment.enabled: true has no effect, because {type(model).__name__} has no augmentation; use "
            "clew.recipes.lartpc.augmentation.Augmentation in the network, or set augment.enabled=false"
        )
