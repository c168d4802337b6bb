"""Batches: the columns of a table as torch tensors. Ragged columns are concatenated, never padded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clew.core.html_table import html_table, shorten
from clew.data.table import WEIGHT, Ragged, Table
from clew.errors import DataError, RecipeError, list_names

CACHE_LINE = 64
"""Bytes of a cache line, to which torch aligns its tensors."""


@dataclass(frozen=True)
class RaggedTensor:
    """All items of all events of a batch.

    Args:
        values: Tensor of shape (items, ...).
        offsets: int64 of shape (events + 1,). Event i has the values from `offsets[i]` to `offsets[i + 1]`.
    """

    values: Tensor
    offsets: Tensor

    @cached_property
    def lengths(self) -> Tensor:
        """Number of items of each event, of shape (events,)."""
        return self.offsets.diff()

    @cached_property
    def events(self) -> Tensor:
        """The event number of every item, of shape (items,)."""
        return torch.repeat_interleave(self.lengths, output_size=len(self.values))

    def padded(self, fill: float = 0.0) -> tuple[Tensor, Tensor]:
        """Return the items as a rectangle.

        Args:
            fill: Value where an event has no item.

        Returns:
            The values of shape (events, longest, ...), and a mask of shape (events, longest) that is true where there
                is an item.
        """
        lengths = self.lengths
        places = torch.arange(int(lengths.max()) if len(lengths) else 0, device=lengths.device)
        mask = places < lengths[:, None]
        rectangle = self.values.new_full((*mask.shape, *self.values.shape[1:]), fill)
        rectangle[mask] = self.values
        return rectangle, mask

    def map(self, change: Callable[[Tensor], Tensor]) -> RaggedTensor:
        """Return the column with a function applied to both tensors."""
        return RaggedTensor(change(self.values), change(self.offsets))


TensorColumn: TypeAlias = "Tensor | RaggedTensor"


class Batch:
    """Some events as tensors. `batch["x"]` is a tensor; `batch.ragged("x")` has the offsets too.

    Columns of indices (`index_of`) count the items of the whole batch, so they can be used in gather and scatter
    operations.

    Args:
        size: Number of events.
        columns: Tensors of shape (events, ...), and ragged columns, by name.
        weights: Event weights of shape (size,). None if all events have the same weight.

    Example:
        >>> table = Table({"label": [1, 0], "x": Ragged.from_lists([[0.5, 1.5], [2.5]])})
        >>> batch = to_batch(table)
        >>> batch["label"].tolist(), batch["x"].tolist()
        ([1, 0], [0.5, 1.5, 2.5])
        >>> batch.ragged("x").offsets.tolist()
        [0, 2, 3]
    """

    def __init__(self, size: int, columns: dict[str, TensorColumn], weights: Tensor | None = None) -> None:
        self.size = size
        self.columns = columns
        self.weights = weights
        """Event weights of shape (size,), or None if every event counts the same."""
        self.counts = True
        """False for a batch of a rank that has no samples in this step: it makes the same calls as the others, and its
        losses have weight 0."""
        self.capacity: Mapping[str, int] | None = None
        """Number of items of each ragged column for which a recorded step has memory. None: the step is not recorded.
        See
        `Recipe.graph_capacity`."""
        self.has_capacity = False
        """Whether ragged columns have that size. The values after the last offset are zero and have no meaning."""
        self._filled: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"Batch({self.size} events on {self._device()}; {shorten([' '.join(row) for row in self._rows()])})"

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        title = f"Batch of {self.size} events on {self._device()}"
        return html_table(title, self._rows(), header=("column", "type", "shape"))

    def _device(self) -> str:
        return next((str(self[name].device) for name in self.columns), "no device")

    def _rows(self) -> list[tuple[str, str, str]]:
        """Name, type and shape of every column."""
        rows = []
        for name, column in self.columns.items():
            ragged = "ragged " if isinstance(column, RaggedTensor) else ""
            kind = f"{ragged}{str(self[name].dtype).removeprefix('torch.')}"
            rows.append((name, kind, str(tuple(self[name].shape))))
        return rows

    def __getitem__(self, name: str) -> Tensor:
        """Return a fixed column, or the values of a ragged one."""
        column = self._column(name)
        return column.values if isinstance(column, RaggedTensor) else column

    def ragged(self, name: str) -> RaggedTensor:
        """Return a ragged column with its offsets.

        Raises:
            DataError: the column does not exist, or is not ragged.
        """
        column = self._column(name)
        if not isinstance(column, RaggedTensor):
            raise DataError(f"column '{name}' of the batch is not ragged")
        return column

    def to(self, device: torch.device) -> Batch:
        """Return the batch on another device."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=True))

    def pin(self) -> Batch:
        """Return the batch in pinned memory, from which a GPU can copy while the CPU continues."""
        return self._map(lambda tensor: tensor.pin_memory())

    def record_stream(self, stream: torch.Stream) -> None:
        """Tell the memory allocator that a stream uses the tensors, so that their memory is not used again before the
        stream has finished with it."""
        for column in self.columns.values():
            for tensor in (column.values, column.offsets) if isinstance(column, RaggedTensor) else (column,):
                tensor.record_stream(stream)
        if self.weights is not None:
            self.weights.record_stream(stream)

    def rows(self, events: Tensor) -> Batch:
        """Return some of the events.

        Args:
            events: Numbers of the events.

        Raises:
            DataError: the batch has ragged columns, which cannot be divided in this way.
        """
        for name, column in self.columns.items():
            if isinstance(column, RaggedTensor):
                raise DataError(f"column '{name}' is ragged: such a batch cannot be cut into rows")
        part = self._map(lambda tensor: tensor[events])
        part.size = len(events)
        return part

    def describe(self) -> str:
        """Return the names, types and shapes of the columns, for an error message."""
        return ", ".join(" ".join(row) for row in self._rows())

    def _map(self, change: Callable[[Tensor], Tensor]) -> Batch:
        columns: dict[str, TensorColumn] = {
            name: column.map(change) if isinstance(column, RaggedTensor) else change(column)
            for name, column in self.columns.items()
        }
        changed = Batch(self.size, columns, None if self.weights is None else change(self.weights))
        changed.counts, changed.capacity, changed.has_capacity = self.counts, self.capacity, self.has_capacity
        return changed

    @staticmethod
    def capacity_for(items: int, *, bits: int = 5) -> int:
        """Return a capacity for a number of items: the next number with at most `bits` significant bits, so that
        batches
        of similar size have the same capacity.

        Example:
            >>> Batch.capacity_for(1000, bits=5), Batch.capacity_for(1025, bits=5)
            (1024, 1088)
        """
        unit: int = 1 << max(items.bit_length() - bits, 0)
        return -(-items // unit) * unit

    def empty_with_capacity(self) -> Batch:
        """Return a batch of zeros with the sizes of `capacity`, for this batch and all others of the same capacity.

        Raises:
            RecipeError: `capacity` does not contain a ragged column.
        """
        assert self.capacity is not None
        columns: dict[str, TensorColumn] = {}
        for name, column in self.columns.items():
            if not isinstance(column, RaggedTensor):
                columns[name] = torch.zeros_like(column)
            elif name in self.capacity:
                values = column.values.new_zeros((self.capacity[name], *column.values.shape[1:]))
                columns[name] = RaggedTensor(values, torch.zeros_like(column.offsets))
            else:
                raise RecipeError(f"graph_capacity() returns no capacity for the ragged column '{name}'")
        empty = Batch(self.size, columns, None if self.weights is None else torch.zeros_like(self.weights))
        empty.capacity, empty.has_capacity = self.capacity, True
        return empty

    def fill(self, batch: Batch) -> None:
        """Copy the events of a batch that has the same capacity into this one."""
        for name, column in self.columns.items():
            source = batch.columns[name]
            if isinstance(column, RaggedTensor):
                assert isinstance(source, RaggedTensor)
                items, before = len(source.values), self._filled.get(name, 0)
                column.values[:items].copy_(source.values)
                if items < before:
                    column.values[items:before].zero_()
                column.offsets.copy_(source.offsets)
                self._filled[name] = items
            else:
                assert isinstance(source, Tensor)
                column.copy_(source)
        if self.weights is not None and batch.weights is not None:
            self.weights.copy_(batch.weights)

    def _column(self, name: str) -> TensorColumn:
        try:
            return self.columns[name]
        except KeyError:
            names = list_names(self.columns, name)
            raise DataError(f"the batch has no column '{name}', only {names}; see Recipe.columns") from None


def to_batch(table: Table, columns: Sequence[str] | None = None, *, copy: bool = True) -> Batch:
    """Return the events of a table as one batch.

    Args:
        table: The events.
        columns: The columns to use, as in `Recipe.columns`. None uses all.
        copy: Whether values are copied. If not, the batch uses the memory of the table, which must come from torch:
            that memory is aligned.
    """
    names = list(table) if columns is None else list(columns)
    tensors = {name: _tensor(table, name, copy) for name in names}
    weights = torch.from_numpy(table.weights.astype(np.float32)) if WEIGHT in table else None
    return Batch(len(table), tensors, weights)


def cut_batches(table: Table, size: int, columns: Sequence[str] | None = None) -> list[Batch]:
    """Return the events of a table in batches of `size`, in order. The result is that of `to_batch` for each slice, but
    faster.

    Columns with one value per event are copied once. A batch is a view of that copy if it begins at a cache line.
    Otherwise it is a copy, because matrix products can round differently for another alignment of their inputs.

    Args:
        table: The events.
        size: Events per batch.
        columns: The columns to use, as in `Recipe.columns`. None uses all.
    """
    names = list(table) if columns is None else list(columns)
    flat = [name for name in names if not isinstance(table[name], Ragged)]
    starts = range(0, len(table), size)
    if any(name in table.index_of for name in names):
        return [to_batch(table.slice(start, start + size), names) for start in starts]
    if len(flat) < len(names):
        return [_window(table, names, start, min(start + size, len(table))) for start in starts]
    parts = {name: _parts(_aligned(table.fixed(name)), size) for name in flat}
    weights = _parts(torch.from_numpy(table.weights.astype(np.float32)), size) if WEIGHT in table else None
    batches = []
    for place, start in enumerate(starts):
        batch = Batch(
            min(size, len(table) - start), {name: column_parts[place] for name, column_parts in parts.items()}
        )
        batch.weights = None if weights is None else weights[place]
        batches.append(batch)
    return batches


def _window(table: Table, names: Sequence[str], start: int, stop: int) -> Batch:
    """Return the events from start to stop of columns that contain no indices, without a table in between."""
    item_ranges: dict[int, tuple[slice, Tensor]] = {}
    columns: dict[str, TensorColumn] = {}
    for name in names:
        column = table[name]
        if not isinstance(column, Ragged):
            columns[name] = _aligned(column[start:stop])
            continue
        if id(column.offsets) not in item_ranges:
            window = column.offsets[start : stop + 1]
            item_ranges[id(column.offsets)] = (
                slice(int(window[0]), int(window[-1])),
                torch.from_numpy(window - window[0]),
            )
        rows, offsets = item_ranges[id(column.offsets)]
        columns[name] = RaggedTensor(_aligned(column.values[rows]), offsets)
    weights = _aligned(table.fixed(WEIGHT)[start:stop].astype(np.float32)) if WEIGHT in table else None
    return Batch(stop - start, columns, weights)


def _parts(tensor: Tensor, size: int) -> list[Tensor]:
    parts: tuple[Tensor, ...] = torch.split(tensor, size)
    return [part if part.data_ptr() % CACHE_LINE == 0 else part.clone() for part in parts]


def _tensor(table: Table, name: str, copy: bool = True) -> TensorColumn:
    column = table[name]
    to_tensor = _aligned if copy else torch.from_numpy
    if not isinstance(column, Ragged):
        return to_tensor(column)
    values = column.values
    if name in table.index_of:
        starts = np.repeat(table.ragged(table.index_of[name]).offsets[:-1], column.lengths)
        values = values.astype(np.int64) + starts.reshape((-1,) + (1,) * (values.ndim - 1))
    return RaggedTensor(to_tensor(values), torch.from_numpy(column.offsets))


def _aligned(values: NDArray[Any]) -> Tensor:
    """Return a copy in memory of torch, which is aligned: matrix products can round differently for another
    alignment. NumPy copies: torch would wake threads that cost more than they save."""
    tensor = torch.empty(values.shape, dtype=torch.from_numpy(np.empty(0, values.dtype)).dtype)
    tensor.numpy()[...] = values
    return tensor
