"""Ragged columns: the values of all events in one array, and the offsets at which the events begin."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clew.errors import DataError

Array = NDArray[Any]
Offsets = NDArray[np.int64]


class Ragged:
    """A column with a variable number of items per event.

    Columns that share one `offsets` array describe the same items, such as the x and y of the same hits. All functions
    of `clew.data.table` keep the array shared.

    Args:
        values: The values of all events, one after the other, of shape (items, ...).
        offsets: int64 of shape (events + 1,). Event i has the values from `offsets[i]` to `offsets[i + 1]`.

    Raises:
        DataError: the offsets do not begin at 0, decrease, or do not end at the number of items.

    Example:
        >>> x = Ragged([0.1, 0.2, 0.3], [0, 2, 2, 3])
        >>> x
        Ragged(3 events, 3 items, float64)
        >>> x.lengths.tolist(), x[0].tolist()
        ([2, 0, 1], [0.1, 0.2])
        >>> y = x.share([1, 2, 3])
        >>> y.offsets is x.offsets
        True
    """

    __slots__ = ("offsets", "values")

    def __init__(self, values: ArrayLike, offsets: ArrayLike) -> None:
        self.values: Array = np.asarray(values)
        self.offsets: Offsets = check_offsets(offsets, len(self.values))

    @classmethod
    def from_lengths(cls, values: ArrayLike, lengths: ArrayLike) -> Ragged:
        """Return a column of consecutive events.

        Args:
            values: The values of all events, one after the other.
            lengths: Number of items of each event.
        """
        return cls(values, offsets_of(lengths))

    @classmethod
    def from_lists(cls, lists: Sequence[ArrayLike], dtype: Any = None) -> Ragged:
        """Return a column from one array per event. It is meant for tests and small tables.

        Example:
            >>> Ragged.from_lists([[1, 2], [], [3]]).lengths.tolist()
            [2, 0, 1]
        """
        arrays = [np.asarray(item, dtype=dtype) for item in lists]
        filled = [array for array in arrays if len(array)] or arrays[:1]  # an empty list has no type of its own
        values = np.concatenate(filled) if filled else np.empty(0, dtype=dtype)
        return cls.from_lengths(values, [len(array) for array in arrays])

    def share(self, values: ArrayLike) -> Ragged:
        """Return another column of the same items, which shares the offsets array.

        Args:
            values: One value per item.

        Raises:
            DataError: the number of values differs from the number of items.
        """
        array = np.asarray(values)
        if len(array) != len(self.values):
            raise DataError(f"{len(array)} values do not fit {len(self.values)} items")
        return _trusted(array, self.offsets)

    @property
    def lengths(self) -> Offsets:
        """The number of items of each event."""
        return np.diff(self.offsets)

    @property
    def events(self) -> Offsets:
        """The event number of every item: [0, 0, 1, 2, 2, ...]."""
        return np.repeat(np.arange(len(self), dtype=np.int64), self.lengths)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, event: int) -> Array:
        if not -len(self) <= event < len(self):
            raise IndexError(event)
        event %= len(self)
        return self.values[self.offsets[event] : self.offsets[event + 1]]

    def __iter__(self) -> Iterator[Array]:
        return (self[event] for event in range(len(self)))

    def __repr__(self) -> str:
        return f"Ragged({len(self)} events, {len(self.values)} items, {self.values.dtype})"


def check_offsets(offsets: ArrayLike, total: int) -> Offsets:
    """Return offsets as int64, after checking them.

    Raises:
        DataError: the offsets do not begin at 0, decrease, or do not end at `total`.
    """
    array = np.asarray(offsets)
    if array.ndim != 1 or len(array) == 0 or (array.dtype.kind not in "iu"):
        raise DataError(f"offsets must be a 1-D integer array of events + 1, got {array.dtype} {array.shape}")
    array = array.astype(np.int64, copy=False)
    if array[0] != 0 or array[-1] != total:
        raise DataError(f"offsets must run from 0 to {total}, got {array[0]} to {array[-1]}")
    if (array[1:] < array[:-1]).any():
        event = int(np.argmax(array[1:] < array[:-1]))
        raise DataError(f"offsets fall at event {event}: {array[event]} to {array[event + 1]}")
    return array


def offsets_of(lengths: ArrayLike) -> Offsets:
    """Return the offsets for the number of items of each event."""
    counts = np.asarray(lengths, dtype=np.int64)
    offsets = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def gather(offsets: Offsets, events: Offsets) -> tuple[Offsets, Offsets]:
    """Return the rows of the items of some events, and the offsets of the result. This is `take` for ragged columns."""
    lengths = offsets[events + 1] - offsets[events]
    new = offsets_of(lengths)
    rows = np.arange(new[-1], dtype=np.int64)
    rows += np.repeat(offsets[events] - new[:-1], lengths)
    return rows, new


def _trusted(values: Array, offsets: Offsets) -> Ragged:
    """Return a Ragged from arrays that are known to be correct, without checking them again."""
    ragged = Ragged.__new__(Ragged)
    ragged.values, ragged.offsets = values, offsets
    return ragged
