"""Batches of the events of a table by number, gathered several at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clew.data.dataset.batch import CACHE_LINE, Batch, RaggedTensor, TensorColumn
from clew.data.table import WEIGHT, Ragged, Table
from clew.data.table.ragged import gather, offsets_of


class BatchBuilder:
    """Makes batches of the events of a table by number. The result is that of `to_batch(table.take(numbers))`, but
    faster.

    The columns are tensors that use the memory of the table. The rows of several batches are gathered in one call, and
    each batch is a view of them.

    Args:
        table: The events.
        columns: The columns to use, as in `Recipe.columns`. None uses all.
    """

    def __init__(self, table: Table, columns: Sequence[str] | None = None) -> None:
        names = list(table) if columns is None else list(columns)
        self._fixed = {n: torch.from_numpy(_plain(table.fixed(n))) for n in names if not isinstance(table[n], Ragged)}
        self._offsets = {name: table.ragged(name).offsets for name in names if name not in self._fixed}
        self._values = {name: torch.from_numpy(_plain(table.ragged(name).values)) for name in self._offsets}
        self._targets = {
            name: table.ragged(table.index_of[name]).offsets for name in self._offsets if name in table.index_of
        }
        self._order = names
        self._weights = torch.from_numpy(table.weights.astype(np.float32)) if WEIGHT in table else None
        self.event_bytes = table.nbytes / max(len(table), 1)
        """Mean number of bytes of an event."""

    def take(self, numbers: NDArray[np.int64]) -> Batch:
        """Return a batch of the events with these numbers, in this order."""
        return next(self.batches([numbers]))

    def batches(self, pieces: Sequence[NDArray[np.int64]]) -> Iterator[Batch]:
        """Return one batch for each list of event numbers."""
        numbers = np.concatenate(pieces) if len(pieces) > 1 else pieces[0]
        index, sizes = torch.from_numpy(numbers), [len(piece) for piece in pieces]
        columns: dict[str, Sequence[TensorColumn]] = {
            name: _split(tensor.index_select(0, index), sizes) for name, tensor in self._fixed.items()
        }
        if self._offsets:
            self._gather(numbers, sizes, columns)
        weights = None if self._weights is None else _split(self._weights.index_select(0, index), sizes)
        for place, size in enumerate(sizes):
            batch_columns = {name: columns[name][place] for name in self._order}
            yield Batch(size, batch_columns, None if weights is None else weights[place])

    def _gather(self, numbers: NDArray[np.int64], sizes: list[int], columns: dict[str, Sequence[TensorColumn]]) -> None:
        """Gather the ragged columns. Rows and offsets are computed once per set of items."""
        item_sets: dict[int, _Items] = {}
        for name, offsets in self._offsets.items():
            if id(offsets) not in item_sets:
                item_sets[id(offsets)] = _Items(offsets, numbers, sizes)
            items = item_sets[id(offsets)]
            values = self._values[name].index_select(0, items.rows)
            target = self._targets.get(name)
            if target is not None:
                if id(target) not in item_sets:
                    item_sets[id(target)] = _Items(target, numbers, sizes)
                shift = torch.from_numpy(np.repeat(item_sets[id(target)].starts, items.lengths))
                values = values.to(torch.int64) + shift.view(-1, *[1] * (values.ndim - 1))
            columns[name] = [
                RaggedTensor(part, part_offsets)
                for part, part_offsets in zip(_split(values, items.totals), items.offsets, strict=True)
            ]


class _Items:
    """The items of some events in batches of `sizes`: their rows, and the offsets of every batch."""

    def __init__(self, offsets: NDArray[np.int64], numbers: NDArray[np.int64], sizes: list[int]) -> None:
        rows, new = gather(offsets, numbers)
        self.rows, self.lengths = torch.from_numpy(rows), new[1:] - new[:-1]
        if len(sizes) == 1:
            self.starts, self.totals, self.offsets = new[:-1], [len(rows)], [torch.from_numpy(new)]
            return
        ends = offsets_of(sizes)
        first = new[ends]
        self.starts = new[:-1] - np.repeat(first[:-1], sizes)
        """The first item of each event within its batch."""
        self.totals = (first[1:] - first[:-1]).tolist()
        places = ends.tolist()
        self.offsets = [
            torch.from_numpy(new[a : b + 1] - start)
            for a, b, start in zip(places, places[1:], first.tolist(), strict=False)
        ]


def _split(tensor: Tensor, sizes: list[int]) -> Sequence[Tensor]:
    """Return consecutive parts of a tensor. A part that does not begin at a cache line is copied if it holds
    floating-point numbers."""
    if len(sizes) == 1:
        return (tensor,)
    parts: tuple[Tensor, ...] = torch.split(tensor, sizes)
    if not tensor.is_floating_point():
        return parts
    return [part if part.data_ptr() % CACHE_LINE == 0 else part.clone() for part in parts]


def _plain(values: NDArray[Any]) -> NDArray[Any]:
    """Return an array that torch can use: contiguous and writeable. The arrays of a shard may be neither."""
    values = np.ascontiguousarray(values)
    return values if values.flags.writeable else values.copy()
