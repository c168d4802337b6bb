"""The inputs of a network, scaled, padded and stacked as weaver does it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from clew.core.config import Section
from clew.data.table import Column, Ragged, Table
from clew.data.transforms import FittedTransform
from clew.errors import DataError

_MAX_VALUES = 20_000
"""Values per variable and chunk from which quantiles are measured."""


class Scaling(Section):
    """The scaling of a variable: (value - center) * scale, cut to the range from `min` to `max`.

    Without a centre the values stay as they are.
    """

    center: float | Literal["auto"] | None = None
    scale: float = 1
    min: float = -5
    max: float = 5
    pad_value: float = 0
    length: int | None = None
    """As weaver stores it; not used."""
    pad_mode: str = "constant"
    """As weaver stores it; not used."""

    @classmethod
    def of(cls, numbers: Sequence[Any], centre: Any) -> Scaling:
        """Return the scaling of a line of weaver's list of variables.

        Args:
            numbers: Centre, factor, lowest value, highest value, padding, as far as the line has them.
            centre: The centre of a line that has none.
        """
        names = ("center", "scale", "min", "max", "pad_value")
        return cls.model_validate({"center": centre, **dict(zip(names, numbers, strict=False))})


class InputGroup(Section):
    """An input of the network: variables side by side, padded to one length."""

    length: int | None
    pad_mode: Literal["constant", "wrap"]
    variables: tuple[str, ...]


class WeaverInputs(FittedTransform):
    """Adds one column per input: float32 of shape (variables, length), or (variables,) without a length.

    The columns equal those of weaver's loader to the last bit: lists of the same items are scaled in single precision,
    other columns in their own precision.
    """

    kind: Literal["weaver_inputs"] = "weaver_inputs"
    groups: dict[str, InputGroup]
    scalings: dict[str, Scaling]
    fraction: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Share of the events of every chunk that is measured for automatic scaling."""

    @property
    def needs(self) -> tuple[str, ...]:
        """The variables."""
        return tuple(self.scalings)

    @property
    def makes(self) -> tuple[str, ...]:
        """The inputs."""
        return tuple(self.groups)

    @property
    def needs_fit(self) -> bool:
        return any(each.center == "auto" for each in self.scalings.values())

    def measure(self, events: Table) -> dict[str, NDArray[Any]]:
        part = events.slice(0, max(math.ceil(self.fraction * len(events)), 1))
        return {name: _sample(part[name]) for name, each in self.scalings.items() if each.center == "auto"}

    def fitted(self, parts: Sequence[Mapping[str, NDArray[Any]]]) -> Self:
        scalings = dict(self.scalings)
        for name, scaling in self.scalings.items():
            if scaling.center != "auto":
                continue
            values = np.concatenate([part[name] for part in parts])
            if not values.size:
                raise DataError(f"the scaling of '{name}' cannot be measured: there are no values")
            low, centre, high = np.percentile(np.nan_to_num(values), [16, 50, 84])
            width = max(high - centre, centre - low)
            scale = 1.0 / float(width) if width else 1.0
            scalings[name] = scaling.model_copy(update={"center": float(centre), "scale": scale})
        return self.model_copy(update={"scalings": scalings})

    def __call__(self, events: Table) -> Table:
        return events.join({name: self._stacked(events, group) for name, group in self.groups.items()})

    def _stacked(self, events: Table, group: InputGroup) -> NDArray[np.float32]:
        columns = {name: events[name] for name in group.variables}
        if group.length is None:
            flat = [self._flat(name, column) for name, column in columns.items()]
            return flat[0] if len(flat) == 1 else np.stack(flat, axis=1)
        result = np.empty((len(events), len(group.variables), group.length), dtype=np.float32)
        lists = {name: _as_lists(name, column) for name, column in columns.items()}
        together = _same_items(list(columns.values()))
        for place, (name, column) in enumerate(lists.items()):
            scaling = self.scalings[name]
            values = column.values.astype(np.float32) if together else column.values
            scaled = column.share(_scaled(values, scaling, only_nan=together))
            padding = scaling.pad_value if group.pad_mode == "constant" else 0.0
            result[:, place] = _padded(scaled, group.length, padding, wrap=group.pad_mode == "wrap")
        return result

    def _flat(self, name: str, column: Column) -> NDArray[np.float32]:
        if isinstance(column, Ragged):
            raise DataError(f"'{name}' is a list; give its input a length")
        return _scaled(column, self.scalings[name], only_nan=False).astype(np.float32)


def _sample(column: Column) -> NDArray[Any]:
    values = (column.values if isinstance(column, Ragged) else column).ravel()
    return values[:: -(-len(values) // _MAX_VALUES)] if len(values) > _MAX_VALUES else values


def _as_lists(name: str, column: Column) -> Ragged:
    """A value or an array per event as a list per event."""
    if isinstance(column, Ragged):
        if column.values.ndim != 1:
            raise DataError(f"'{name}' holds arrays per item, not numbers")
        return column
    flat = column.reshape(len(column), -1)
    return Ragged.from_lengths(flat.ravel(), np.full(len(flat), flat.shape[1]))


def _same_items(columns: Sequence[Column]) -> bool:
    """Whether all columns are lists of the same lengths: weaver treats these together, in single precision."""
    ragged = [column for column in columns if isinstance(column, Ragged)]
    return len(ragged) == len(columns) and all(np.array_equal(ragged[0].offsets, c.offsets) for c in ragged)


def _scaled(values: NDArray[Any], scaling: Scaling, *, only_nan: bool) -> NDArray[Any]:
    if scaling.center is not None:
        centre, scale, low, high = (
            _number(values, n) for n in (scaling.center, scaling.scale, scaling.min, scaling.max)
        )
        values = np.clip((values - centre) * scale, low, high)
    if values.dtype.kind != "f":
        return values
    return np.where(np.isnan(values), values.dtype.type(0), values) if only_nan else np.nan_to_num(values)


def _number(values: NDArray[Any], number: Any) -> Any:
    """A setting in the precision of the values."""
    return values.dtype.type(number) if values.dtype.kind == "f" else number


def _padded(column: Ragged, length: int, padding: float, *, wrap: bool) -> NDArray[np.float32]:
    lengths, starts, place = column.lengths[:, None], column.offsets[:-1, None], np.arange(length)
    filled = np.broadcast_to(lengths > 0, (len(column), length)) if wrap else place < lengths
    index = starts + (place % np.maximum(lengths, 1) if wrap else place)
    result = np.full((len(column), length), padding, dtype=np.float32)
    result[filled] = column.values[index[filled]]
    return result
