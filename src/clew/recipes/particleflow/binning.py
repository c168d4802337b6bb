"""Which elements share a bin: locality-sensitive hashing, without padding events to a common length.

An event of n elements has ceil(n / size) bins; those of all events of a batch lie one after the other, and the last bin
of each event is filled in part. Elements are put in order by event, then by hash code, then as they came: the sort is
stable, so equal codes give equal bins. The number of codes is fixed, whatever the number of bins: then padding, which
an unpadded event has none of, would come last and change nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """The bins of a batch; the same for every layer, as it follows from the lengths of events alone."""

    size: int
    """Places in a bin."""
    event: Tensor
    """(elements,) of every element, in order."""
    slot: Tensor
    """(elements,) the place, counted through all bins, of the k-th element in order."""
    filled: tuple[int, ...]
    """Elements in each bin."""
    mask: Tensor
    """(bins, size): whether there is an element."""

    @classmethod
    def of(cls, offsets: Tensor, size: int) -> Layout:
        """From where events begin in a batch."""
        lengths = offsets.diff()
        bins = (lengths + size - 1) // size
        filled = tuple(
            min(size, n - start) for n in lengths.tolist() for start in range(0, n, size)
        )  # waits for a device, once a batch
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
        """The bin of every element, from an order (..., elements)."""
        bins = (self.slot // self.size).expand_as(order)
        return torch.empty_like(order).scatter_(-1, order, bins)


def owners(offsets: Tensor, items: int) -> Tensor:
    """The event of each of so many items, and the number of events for those behind the last offset; no number leaves
    the device."""
    begins = torch.zeros(items + 1, dtype=torch.int64, device=offsets.device)
    begins.index_add_(0, offsets[1:], torch.ones_like(offsets[1:]))
    return begins[:-1].cumsum(0)


def codes(distance: Tensor, codebook: Tensor) -> Tensor:
    """Hash codes (stacks, elements) of distance features (stacks, elements, d), by a codebook (stacks, d, codes / 2).

    The arg-max of [x C, -x C]; of equal ones the first. In single precision under any autocast.
    """
    with torch.no_grad(), torch.autocast(distance.device.type, enabled=False):
        wide = torch.promote_types(distance.dtype, torch.float32)
        along = torch.bmm(distance.to(wide), codebook.to(wide))
        return torch.cat([along, -along], dim=-1).argmax(dim=-1)


def order(found: Tensor, event: Tensor, count: int) -> Tensor:
    """(stacks, elements): elements by event, then by code, then as they came. `count`: of codes."""
    return torch.sort(event * count + found, dim=-1, stable=True).indices


def flips(one: Tensor, other: Tensor, layout: Layout) -> float:
    """The share of elements that lie in another bin by one computation (orders, as `order` gives) than by another."""
    return float((layout.bin_of(one) != layout.bin_of(other)).double().mean())
