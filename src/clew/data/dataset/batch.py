"""Batches: a table's columns as torch tensors. Ragged columns are concatenated, never padded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clew.data.table import WEIGHT, Ragged, Table
from clew.data.table.ragged import gather, offsets_of
from clew.errors import DataError, RecipeError

_LINE = 64
"""Bytes of a line of memory, which torch aligns its tensors to."""


@dataclass(frozen=True)
class RaggedTensor:
    """All items of all events of a batch: `values` (total, ...), `offsets` int64 (events + 1,)."""

    values: Tensor
    offsets: Tensor

    @cached_property
    def lengths(self) -> Tensor:
        """Items an event."""
        return self.offsets.diff()

    @cached_property
    def events(self) -> Tensor:
        """The event of every item."""
        return torch.repeat_interleave(self.lengths, output_size=len(self.values))

    def padded(self, fill: float = 0.0) -> tuple[Tensor, Tensor]:
        """A rectangle (events, longest, ...) and a mask (events, longest) that is true where there is an item."""
        lengths = self.lengths
        places = torch.arange(int(lengths.max()) if len(lengths) else 0, device=lengths.device)
        mask = places < lengths[:, None]
        rectangle = self.values.new_full((*mask.shape, *self.values.shape[1:]), fill)
        rectangle[mask] = self.values
        return rectangle, mask

    def map(self, change: Callable[[Tensor], Tensor]) -> RaggedTensor:
        """The same with `change` done to both tensors."""
        return RaggedTensor(change(self.values), change(self.offsets))


TensorColumn: TypeAlias = "Tensor | RaggedTensor"


class Batch:
    """Some events as tensors. Pointers (`index_of`) count through the whole batch, ready for gather and scatter."""

    def __init__(self, size: int, columns: dict[str, TensorColumn], weights: Tensor | None = None) -> None:
        self.size = size
        self.columns = columns
        self.weights = weights
        """Event weights (size,), or None where every event counts the same."""
        self.counts = True
        """False for a batch that a rank borrowed to keep step with the others: its losses weigh nothing."""
        self.room: Mapping[str, int] | None = None
        """Items that each ragged column is given room for when a step is recorded; None: it is not. See
        `Recipe.graph_capacity`."""
        self.roomy = False
        """Whether ragged columns have that room: what lies behind the last offset is zero and means nothing."""
        self._filled: dict[str, int] = {}

    def __getitem__(self, name: str) -> Tensor:
        """A fixed column, or the values of a ragged one."""
        column = self._column(name)
        return column.values if isinstance(column, RaggedTensor) else column

    def ragged(self, name: str) -> RaggedTensor:
        """A ragged column with its offsets."""
        column = self._column(name)
        if not isinstance(column, RaggedTensor):
            raise DataError(f"column '{name}' of the batch is not ragged")
        return column

    def to(self, device: torch.device) -> Batch:
        """The same on another device."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=True))

    def pin(self) -> Batch:
        """The same in memory that a device can fetch from while the processor goes on."""
        return self._map(lambda tensor: tensor.pin_memory())

    def used_on(self, stream: torch.Stream) -> None:
        """Its memory on the device is not given away before this stream is done with it."""
        for column in self.columns.values():
            for tensor in (column.values, column.offsets) if isinstance(column, RaggedTensor) else (column,):
                tensor.record_stream(stream)
        if self.weights is not None:
            self.weights.record_stream(stream)

    def rows(self, events: Tensor) -> Batch:
        """Some of the events.

        Raises:
            DataError: there are ragged columns, which this cannot cut.
        """
        for name, column in self.columns.items():
            if isinstance(column, RaggedTensor):
                raise DataError(f"column '{name}' is ragged: such a batch cannot be cut into rows")
        part = self._map(lambda tensor: tensor[events])
        part.size = len(events)
        return part

    def describe(self) -> str:
        """Columns, types and shapes, as an error message tells them."""
        told = []
        for name, column in self.columns.items():
            values = column.values if isinstance(column, RaggedTensor) else column
            kind = str(values.dtype).removeprefix("torch.")
            told.append(f"{name} {'ragged ' if isinstance(column, RaggedTensor) else ''}{kind} {tuple(values.shape)}")
        return ", ".join(told)

    def _map(self, change: Callable[[Tensor], Tensor]) -> Batch:
        columns: dict[str, TensorColumn] = {
            name: column.map(change) if isinstance(column, RaggedTensor) else change(column)
            for name, column in self.columns.items()
        }
        changed = Batch(self.size, columns, None if self.weights is None else change(self.weights))
        changed.counts, changed.room, changed.roomy = self.counts, self.room, self.roomy
        return changed

    @staticmethod
    def room_for(items: int, *, bits: int = 5) -> int:
        """Room for so many items, and a few more: of all numbers those with `bits` significant bits, so that batches of
        about the same size need the same room."""
        unit: int = 1 << max(items.bit_length() - bits, 0)
        return -(-items // unit) * unit

    def in_room(self) -> Batch:
        """Of the same shapes, with zeros, for this batch and any other that needs the same `room`.

        Raises:
            RecipeError: a ragged column has none.
        """
        assert self.room is not None
        columns: dict[str, TensorColumn] = {}
        for name, column in self.columns.items():
            if not isinstance(column, RaggedTensor):
                columns[name] = torch.zeros_like(column)
            elif name in self.room:
                values = column.values.new_zeros((self.room[name], *column.values.shape[1:]))
                columns[name] = RaggedTensor(values, torch.zeros_like(column.offsets))
            else:
                raise RecipeError(f"room() names no room for the ragged column '{name}'")
        made = Batch(self.size, columns, None if self.weights is None else torch.zeros_like(self.weights))
        made.room, made.roomy = self.room, True
        return made

    def fill(self, batch: Batch) -> None:
        """Take over the events of a batch that needs this one's room."""
        for name, column in self.columns.items():
            given = batch.columns[name]
            if isinstance(column, RaggedTensor):
                assert isinstance(given, RaggedTensor)
                items, before = len(given.values), self._filled.get(name, 0)
                column.values[:items].copy_(given.values)
                if items < before:
                    column.values[items:before].zero_()
                column.offsets.copy_(given.offsets)
                self._filled[name] = items
            else:
                assert isinstance(given, Tensor)
                column.copy_(given)
        if self.weights is not None and batch.weights is not None:
            self.weights.copy_(batch.weights)

    def _column(self, name: str) -> TensorColumn:
        try:
            return self.columns[name]
        except KeyError:
            known = ", ".join(self.columns)
            raise DataError(f"the batch has no column '{name}', only {known}; see Recipe.columns") from None


def to_batch(table: Table, columns: Sequence[str] | None = None, *, copy: bool = True) -> Batch:
    """The events of a table as one batch; `columns` as in `Recipe.columns`. Without `copy` it looks at the table's own
    memory, which torch must have made: that is aligned."""
    names = list(table) if columns is None else list(columns)
    tensors = {name: _tensor(table, name, copy) for name in names}
    weights = torch.from_numpy(table.weights.astype(np.float32)) if WEIGHT in table else None
    return Batch(len(table), tensors, weights)


def cut(table: Table, size: int, columns: Sequence[str] | None = None) -> list[Batch]:
    """The events of a table in batches of `size`, in order: what `to_batch` gives for each slice, sooner.

    Columns with one value an event are copied once, and a batch is a look at them where it begins on a whole line of
    memory: elsewhere it is a copy, because matrix products may round by where their inputs lie.
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
    found = []
    for place, start in enumerate(starts):
        batch = Batch(min(size, len(table) - start), {name: each[place] for name, each in parts.items()})
        batch.weights = None if weights is None else weights[place]
        found.append(batch)
    return found


def _window(table: Table, names: Sequence[str], start: int, stop: int) -> Batch:
    """Events start to stop of columns that point at nothing, without a table in between."""
    done: dict[int, tuple[slice, Tensor]] = {}
    columns: dict[str, TensorColumn] = {}
    for name in names:
        column = table[name]
        if not isinstance(column, Ragged):
            columns[name] = _aligned(column[start:stop])
            continue
        if id(column.offsets) not in done:
            window = column.offsets[start : stop + 1]
            done[id(column.offsets)] = slice(int(window[0]), int(window[-1])), torch.from_numpy(window - window[0])
        rows, offsets = done[id(column.offsets)]
        columns[name] = RaggedTensor(_aligned(column.values[rows]), offsets)
    weights = _aligned(table.fixed(WEIGHT)[start:stop].astype(np.float32)) if WEIGHT in table else None
    return Batch(stop - start, columns, weights)


def _parts(whole: Tensor, size: int) -> list[Tensor]:
    parts: tuple[Tensor, ...] = torch.split(whole, size)
    return [part if part.data_ptr() % _LINE == 0 else part.clone() for part in parts]


class Batches:
    """Batches of a table's events by number: what `to_batch(table.take(numbers))` gives for each, sooner.

    Columns are tensors over the table's own memory. Rows of several batches are gathered together, and a batch is a
    look at them: the cost of a call is shared.
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
        """Of an event, on average."""

    def take(self, numbers: NDArray[np.int64]) -> Batch:
        """The events with these numbers, in this order."""
        return next(self.each([numbers]))

    def each(self, pieces: Sequence[NDArray[np.int64]]) -> Iterator[Batch]:
        """A batch of each list of numbers."""
        numbers = np.concatenate(pieces) if len(pieces) > 1 else pieces[0]
        index, sizes = torch.from_numpy(numbers), [len(piece) for piece in pieces]
        columns: dict[str, Sequence[TensorColumn]] = {
            name: _split(tensor.index_select(0, index), sizes) for name, tensor in self._fixed.items()
        }
        if self._offsets:
            self._gather(numbers, sizes, columns)
        weights = None if self._weights is None else _split(self._weights.index_select(0, index), sizes)
        for place, size in enumerate(sizes):
            own = {name: columns[name][place] for name in self._order}
            yield Batch(size, own, None if weights is None else weights[place])

    def _gather(self, numbers: NDArray[np.int64], sizes: list[int], columns: dict[str, Sequence[TensorColumn]]) -> None:
        """The ragged columns; rows and offsets once for every set of items."""
        done: dict[int, _Items] = {}
        for name, offsets in self._offsets.items():
            if id(offsets) not in done:
                done[id(offsets)] = _Items(offsets, numbers, sizes)
            items = done[id(offsets)]
            values = self._values[name].index_select(0, items.rows)
            target = self._targets.get(name)
            if target is not None:
                if id(target) not in done:
                    done[id(target)] = _Items(target, numbers, sizes)
                shift = torch.from_numpy(np.repeat(done[id(target)].starts, items.lengths))
                values = values.to(torch.int64) + shift.view(-1, *[1] * (values.ndim - 1))
            columns[name] = [
                RaggedTensor(part, own) for part, own in zip(_split(values, items.totals), items.offsets, strict=True)
            ]


class _Items:
    """The items of some events in batches of `sizes`: where they lie, and the offsets of every batch."""

    def __init__(self, offsets: NDArray[np.int64], numbers: NDArray[np.int64], sizes: list[int]) -> None:
        rows, new = gather(offsets, numbers)
        self.rows, self.lengths = torch.from_numpy(rows), new[1:] - new[:-1]
        if len(sizes) == 1:
            self.starts, self.totals, self.offsets = new[:-1], [len(rows)], [torch.from_numpy(new)]
            return
        ends = offsets_of(sizes)
        first = new[ends]
        self.starts = new[:-1] - np.repeat(first[:-1], sizes)
        """Where an event's items begin within its batch."""
        self.totals = (first[1:] - first[:-1]).tolist()
        places = ends.tolist()
        self.offsets = [
            torch.from_numpy(new[a : b + 1] - start)
            for a, b, start in zip(places, places[1:], first.tolist(), strict=False)
        ]


def _split(whole: Tensor, sizes: list[int]) -> Sequence[Tensor]:
    """Parts one after the other; those that do not begin on a whole line of memory are copies, where that matters."""
    if len(sizes) == 1:
        return (whole,)
    parts: tuple[Tensor, ...] = torch.split(whole, sizes)
    if not whole.is_floating_point():
        return parts
    return [part if part.data_ptr() % _LINE == 0 else part.clone() for part in parts]


def _plain(values: NDArray[Any]) -> NDArray[Any]:
    """An array that torch can look at: contiguous and writeable (a shard may be neither)."""
    values = np.ascontiguousarray(values)
    return values if values.flags.writeable else values.copy()


def _tensor(table: Table, name: str, copy: bool = True) -> TensorColumn:
    column = table[name]
    made = _aligned if copy else torch.from_numpy
    if not isinstance(column, Ragged):
        return made(column)
    values = column.values
    if name in table.index_of:
        starts = np.repeat(table.ragged(table.index_of[name]).offsets[:-1], column.lengths)
        values = values.astype(np.int64) + starts.reshape((-1,) + (1,) * (values.ndim - 1))
    return RaggedTensor(made(values), torch.from_numpy(column.offsets))


def _aligned(values: NDArray[Any]) -> Tensor:
    """A copy in torch's own memory, which is aligned: matrix products may round by where their inputs lie."""
    return torch.asarray(np.ascontiguousarray(values), copy=True)  # what is read may not be writeable
