"""From files to columns: which branches are read, which jets are selected, and their class and weight."""

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
    GatherItems,
    Reweight,
    SameItems,
    Select,
    SelectItems,
    Transform,
    made_columns,
    needed_columns,
)
from clew.errors import ConfigError, DataError
from clew.recipes.jets import imagefile
from clew.recipes.jets.generator import JET_CLASSES

LABEL = "label"


class JetDataConfig(Section):
    """What the files contain, and what is used of it. The defaults fit the files of `clew data generate`."""

    tree: str = ""
    """Name of the tree in ROOT files, needed if the input does not name it and there are several."""
    event: str = ""
    """Text files with one line per constituent: the column that numbers jets. Without it, each line is a jet."""
    images: tuple[str, ...] = ()
    """HDF5 files with one dataset of images per class: the names of the datasets, which become the classes."""
    padded: GatherItems | None = None
    """Constituents in numbered columns, filled up with zeros, as in the public top-tagging files:
    `{columns: {part_energy: E_, part_px: PX_}, count: 200}` for `E_0`, `PX_0` to `E_199`, `PX_199`."""
    constituents: tuple[str, ...] = ("part_*",)
    """Columns with one value per constituent: names, or patterns of names."""
    variables: dict[str, ExpressionText] = {}
    """New columns by name, computed in order; each may use those before it."""
    select: ExpressionText | None = None
    """Condition for jets: `jet_pt > 200 && abs(jet_eta) < 2`."""
    select_constituents: ExpressionText | None = None
    """Condition for constituents: `part_pt > 0.5`."""
    labels: dict[str, ExpressionText] = {}
    """Condition of each class by name, background first by convention. The first one that is true counts. Jets of no
    class are removed. Default: the classes of the generator."""
    weight: ExpressionText | None = None
    """Event weights: a column, or an expression of columns."""
    keep: tuple[str, ...] = ("jet_pt",)
    """Columns with one value per jet that samples keep, for plots and for `clew predict --with`."""

    @field_validator("labels")
    @classmethod
    def _some(cls, labels: dict[str, str]) -> dict[str, str]:
        if len(labels) == 1:
            raise ValueError(f"'{next(iter(labels))}' is the only class; name two or more")
        return labels

    @property
    def conditions(self) -> dict[str, str]:
        """The condition of each class by name."""
        if self.images:
            return {name: f"{LABEL} == {number}" for number, name in enumerate(self.images)}
        return dict(self.labels) or {name: f"{LABEL} == {number}" for number, name in enumerate(JET_CLASSES)}

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in order."""
        return tuple(self.conditions)

    def steps(self) -> list[Transform]:
        """New columns and selections, as transforms."""
        steps: list[Transform] = [self.padded] if self.padded else []
        steps += [SameItems(columns=self.constituents)]
        steps += [Compute(column=name, expression=text) for name, text in self.variables.items()]
        steps += [Select(where=self.select)] if self.select else []
        return steps + ([SelectItems(where=self.select_constituents)] if self.select_constituents else [])

    def label_steps(self) -> list[Transform]:
        """Class and weight, as transforms. They are not applied to jets without labels."""
        number = "-1"
        for place, condition in reversed(list(enumerate(self.conditions.values()))):
            number = f"where({condition}, {place}, {number})"
        steps: list[Transform] = [Compute(column=LABEL, expression=number), Select(where=f"{LABEL} >= 0")]
        return steps + ([Compute(column="weight", expression=self.weight)] if self.weight else [])


def read(path: str, data: JetDataConfig, steps: Sequence[Transform], inputs: Iterable[str]) -> Any:
    """Read the pieces of a file, only with the columns that are needed."""
    kind = readers.kind_of(path)
    if kind == "text":
        return readers.read(path, event=data.event)
    columns = file_columns(steps, [*inputs, *data.keep])
    if kind == "hdf5" and data.images:
        return imagefile.read(path, data.images, columns)
    tree = {"tree": data.tree} if kind == "root" and data.tree else {}
    return readers.read(path, columns=columns, items=[data.constituents], **tree)


def file_columns(steps: Sequence[Transform], inputs: Iterable[str]) -> list[str]:
    """The columns that a file must have: used by a step or an input, and not computed by an earlier step."""
    computed: set[str] = set()
    names: dict[str, None] = {}
    for step in [*steps, *(Compute(column=f"input {n}", expression=text) for n, text in enumerate(inputs))]:
        names.update(dict.fromkeys(name for name in needed_columns(step) if name not in computed))
        computed.update(made_columns(step))
        if isinstance(step, Reweight):
            computed.add("weight")
    return list(names)


def stack_inputs(events: Table, inputs: Sequence[str]) -> Ragged | NDArray[np.float32]:
    """Values of the inputs in single precision: (items, inputs) for constituents, (jets, inputs) for jets.

    Raises:
        ConfigError: Some inputs have one value per constituent and some one per jet, or the constituents differ.
        DataError: A value is not finite.
    """
    columns = [Compute(column="input", expression=text)(events)["input"] for text in inputs]
    ragged = [column for column in columns if isinstance(column, Ragged)]
    if not ragged:
        return np.stack([np.asarray(column, np.float32) for column in columns], axis=1)
    for text, column in zip(inputs, columns, strict=True):
        if not isinstance(column, Ragged):
            raise ConfigError(f"input '{text}' has one value per jet, the first input one per constituent")
        if column.offsets is not ragged[0].offsets:
            raise ConfigError(
                f"inputs '{inputs[0]}' and '{text}' do not describe the same constituents; name the columns of "
                "constituents in data.constituents"
            )
    return ragged[0].share(np.stack([column.values.astype(np.float32) for column in ragged], axis=1))


def make_samples(events: Table, data: JetDataConfig, columns: dict[str, Any]) -> Table:
    """Samples from these columns, the class, and the columns of `data.keep`, as far as the events have them."""
    missing = [name for name in data.keep if isinstance(events.get(name), Ragged)]
    if missing:
        raise DataError(f"data.keep: '{missing[0]}' has one value per constituent; keep columns with one per jet")
    kept_columns = {name: events.fixed(name) for name in data.keep if name in events}
    label = {LABEL: events.fixed(LABEL).astype(np.int64)} if LABEL in events else {}
    units = {name: events.units[name] for name in kept_columns if name in events.units}
    return Table({**columns, **label, **kept_columns}, units=units)
