"""Bins of neighbouring elements by locality-sensitive hashing, without padding events to a common length.

An event of n elements has ceil(n / size) bins. The bins of all events of a batch are stored one after the other, and
the last bin of each event may be partly filled. Elements are sorted by event, then by hash code, then by their order in
the event. The sort is stable, so equal codes give equal bins. The number of codes does not depend on the number of
bins. In a padded event the padding is therefore sorted last, and the bins are the same as in an unpadded event.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class BinLayout:
    """The bins of a batch. The layout depends on the lengths of events only, so all layers share it."""

    size: int
    """Slots per bin."""
    event: Tensor
    """(elements,), the event of every element, sorted by event."""
    slot: Tensor
    """(elements,), the slot of the k-th sorted element, counted over all bins."""
    filled: tuple[int, ...]
    """Number of elements in each bin."""
    mask: Tensor
    """(bins, size), whether the slot holds an element."""

    @classmethod
    def of(cls, offsets: Tensor, size: int) -> BinLayout:
        """Make the layout from the offsets (events + 1,) of a batch."""
        lengths = offsets.diff()
        bins = (lengths + size - 1) // size
        filled = tuple(
            min(size, n - start) for n in lengths.tolist() for start in range(0, n, size)
        )  # waits for a device, once per batch
        event = torch.repeat_interleave(lengths)
        first = (bins.cumsum(0) - bins) * size
        slot = torch.arange(len(event), device=offsets.device) + (first - offsets[:-1])[event]
        mask = torch.zeros(len(filled) * size, dtype=torch.bool, device=offsets.device)
        mask[slot] = True
        return cls(size, event, slot, filled, mask.view(-1, size))

    @property
    def bins(self) -> int:
        return len(self.filled)

    def bin_of(self, order: Tensor) -> Tensor:
        """Return the bin of every element, from a sort order (..., elements)."""
        bins = (self.slot // self.size).expand_as(order)
        return torch.empty_like(order).scatter_(-1, order, bins)


def event_of_items(offsets: Tensor, items: int) -> Tensor:
    """Return the event of each of `items` items, without a copy from the device.

    Items after the last offset get the number of events.
    """
    starts = torch.zeros(items + 1, dtype=torch.int64, device=offsets.device)
    starts.index_add_(0, offsets[1:], torch.ones_like(offsets[1:]))
    return starts[:-1].cumsum(0)


def hash_codes(distance: Tensor, codebook: Tensor) -> Tensor:
    """Return the hash codes (stacks, elements) of distance features.

    The code is the arg-max of [x C, -x C], or the first of equal values. It is computed in single precision, also under
    autocast.

    Args:
        distance: Distance features x (stacks, elements, d).
        codebook: C (stacks, d, codes / 2).
    """
    with torch.no_grad(), torch.autocast(distance.device.type, enabled=False):
        wide = torch.promote_types(distance.dtype, torch.float32)
        along = torch.bmm(distance.to(wide), codebook.to(wide))
        return torch.cat([along, -along], dim=-1).argmax(dim=-1)


def sort_by_code(codes: Tensor, event: Tensor, code_count: int) -> Tensor:
    """Return the sort order (stacks, elements): by event, then by code, then by the order in the event."""
    return torch.sort(event * code_count + codes, dim=-1, stable=True).indices


def changed_bin_fraction(one: Tensor, other: Tensor, layout: BinLayout) -> float:
    """Return the fraction of elements whose bin differs between two sort orders."""
    return float((layout.bin_of(one) != layout.bin_of(other)).double().mean())
