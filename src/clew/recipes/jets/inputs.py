"""From files to columns: which branches are read, which jets are kept, what their class and weight are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import field_validator

from clew import Ragged, Section, Table, readers
from clew.data.transforms import (
    Compute,
    ExpressionText,
    Reweight,
    SameItems,
    Select,
    SelectItems,
    Transform,
    needed_columns,
)
from clew.errors import ConfigError, DataError
from clew.recipes.jets import imagefile
from clew.recipes.jets.shower import SPECIES

LABEL = "label"


class Data(Section):
    """What the files hold, and what is used of it: the part that is written anew for every sample.

    The defaults fit the files of `clew data generate`.
    """

    tree: str = ""
    """Of ROOT files, where the input does not name it and there are several."""
    event: str = ""
    """Of text: the column that numbers jets, where a jet has a line for every constituent. Without it, a jet a line."""
    images: tuple[str, ...] = ()
    """Of HDF5 files that hold a dataset of images for every class: their names, which become those of the classes."""
    constituents: tuple[str, ...] = ("part_*",)
    """Columns with a value for every constituent: names, or patterns of names."""
    variables: dict[str, ExpressionText] = {}
    """New columns by name, in order; each may use those before it."""
    select: ExpressionText | None = None
    """Which jets: `jet_pt > 200 && abs(jet_eta) < 2`."""
    select_constituents: ExpressionText | None = None
    """Which constituents: `part_pt > 0.5`."""
    labels: dict[str, ExpressionText] = {}
    """Classes by name, and the condition for each; the first that is true counts, a jet of none is left out. Background
    first, by custom. Without any: those of the generator."""
    weight: ExpressionText | None = None
    """Event weights: a column, or an expression of columns."""
    keep: tuple[str, ...] = ("jet_pt",)
    """Columns with one value a jet that samples keep, for plots and for `clew predict --columns`."""

    @field_validator("labels")
    @classmethod
    def _some(cls, labels: dict[str, str]) -> dict[str, str]:
        if len(labels) == 1:
            raise ValueError(f"one class alone, '{next(iter(labels))}', leaves nothing to tell apart; name two or more")
        return labels

    @property
    def conditions(self) -> dict[str, str]:
        """Every class and how it is told."""
        if self.images:
            return {name: f"{LABEL} == {number}" for number, name in enumerate(self.images)}
        return dict(self.labels) or {name: f"{LABEL} == {number}" for number, name in enumerate(SPECIES)}

    @property
    def classes(self) -> tuple[str, ...]:
        """Their names, in order."""
        return tuple(self.conditions)

    def steps(self) -> list[Transform]:
        """Columns and selections as transforms."""
        steps: list[Transform] = [SameItems(columns=self.constituents)]
        steps += [Compute(column=name, expression=text) for name, text in self.variables.items()]
        steps += [Select(where=self.select)] if self.select else []
        return steps + ([SelectItems(where=self.select_constituents)] if self.select_constituents else [])

    def truth(self) -> list[Transform]:
        """Class and weight as transforms: what is not known of jets that are to be told apart."""
        number = "-1"
        for place, condition in reversed(list(enumerate(self.conditions.values()))):
            number = f"where({condition}, {place}, {number})"
        steps: list[Transform] = [Compute(column=LABEL, expression=number), Select(where=f"{LABEL} >= 0")]
        return steps + ([Compute(column="weight", expression=self.weight)] if self.weight else [])


def read(path: str, data: Data, steps: Sequence[Transform], inputs: Iterable[str]) -> Any:
    """The pieces of a file, with the columns that something needs and no others."""
    kind = readers.kind_of(path)
    if kind == "text":
        return readers.read(path, event=data.event)
    columns = needed(steps, [*inputs, *data.keep])
    if kind == "hdf5" and data.images:
        return imagefile.read(path, data.images, columns)
    tree = {"tree": data.tree} if kind == "root" and data.tree else {}
    return readers.read(path, columns=columns, **tree)


def needed(steps: Sequence[Transform], inputs: Iterable[str]) -> list[str]:
    """The columns a file must have: what is used by a step or an input and not made by a step before it."""
    made: set[str] = set()
    found: dict[str, None] = {}
    for step in [*steps, *(Compute(column=f"input {n}", expression=text) for n, text in enumerate(inputs))]:
        found.update(dict.fromkeys(name for name in needed_columns(step) if name not in made))
        if isinstance(step, Compute):
            made.add(step.column)
        if isinstance(step, Reweight):
            made.add("weight")
    return list(found)


def stacked(events: Table, inputs: Sequence[str]) -> Ragged | NDArray[np.float32]:
    """Inputs side by side in single precision: (items, inputs) where they are of constituents, (jets, inputs) else.

    Raises:
        ConfigError: some are of constituents and some of jets, or of different constituents.
        DataError: one is not finite.
    """
    columns = [Compute(column="input", expression=text)(events)["input"] for text in inputs]
    ragged = [column for column in columns if isinstance(column, Ragged)]
    if not ragged:
        return np.stack([np.asarray(column, np.float32) for column in columns], axis=1)
    for text, column in zip(inputs, columns, strict=True):
        if not isinstance(column, Ragged):
            raise ConfigError(f"input '{text}' has one value a jet, the first one a constituent")
        if column.offsets is not ragged[0].offsets:
            raise ConfigError(f"inputs '{inputs[0]}' and '{text}' do not describe the same constituents")
    return ragged[0].share(np.stack([column.values.astype(np.float32) for column in ragged], axis=1))


def sample(events: Table, data: Data, columns: dict[str, Any]) -> Table:
    """Samples: these columns, the class, and what is kept, as far as they are known."""
    missing = [name for name in data.keep if isinstance(events.get(name), Ragged)]
    if missing:
        raise DataError(f"data.keep: '{missing[0]}' has one value a constituent; keep columns with one a jet")
    kept = {name: events.fixed(name) for name in data.keep if name in events}
    label = {LABEL: events.fixed(LABEL).astype(np.int64)} if LABEL in events else {}
    units = {name: events.units[name] for name in kept if name in events.units}
    return Table({**columns, **label, **kept}, units=units)
