"""Items from numbered columns: `E_0`, `E_1`, ... become one ragged column."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from clew.data.table import Ragged, Table
from clew.data.transforms.base import Transform
from clew.errors import DataError


class GatherItems(Transform):
    """Makes ragged columns from numbered ones: `{columns: {part_energy: E_}, count: 200}` uses `E_0` to `E_199`, and
    removes them.

    A place at which all numbered columns are 0 is padding, and makes no item.
    """

    kind: Literal["gather_items"] = "gather_items"
    """Name of the transform."""
    columns: Annotated[dict[str, str], Field(min_length=1)]
    """The new columns, each with the beginning of the names of its numbered columns."""
    count: Annotated[int, Field(ge=1)]
    """Number of numbered columns of each; the first has the number 0."""

    @property
    def needs(self) -> tuple[str, ...]:
        """The numbered columns."""
        return tuple(f"{prefix}{place}" for prefix in self.columns.values() for place in range(self.count))

    @property
    def makes(self) -> tuple[str, ...]:
        """The new columns."""
        return tuple(self.columns)

    def __call__(self, events: Table) -> Table:
        absent = [name for name in self.needs if name not in events]
        if absent:
            raise DataError(f"gather_items: no column '{absent[0]}'")
        stacks = {
            name: np.stack([events.fixed(f"{prefix}{place}") for place in range(self.count)], axis=1)
            for name, prefix in self.columns.items()
        }
        real = np.any([values != 0 for values in stacks.values()], axis=0)
        lengths, first = real.sum(axis=1), next(iter(stacks))
        items = Ragged.from_lengths(stacks[first][real], lengths)
        made = {name: items if name == first else items.share(values[real]) for name, values in stacks.items()}
        units = {name: events.units.get(f"{prefix}0", "") for name, prefix in self.columns.items()}
        return events.drop(*self.needs).join(made, units={name: unit for name, unit in units.items() if unit})
