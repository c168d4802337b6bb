"""Random tables for the tests of this folder."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from clew.data.table import Ragged, Table

DTYPES = ("float32", "float64", "int32", "int64", "bool")
MANY = settings(max_examples=80, deadline=None)


class Spec(NamedTuple):
    """One column of a random table; columns of one `group` share their offsets, group None is fixed."""

    dtype: str
    inner: tuple[int, ...]
    group: int | None


FIXED = st.builds(Spec, st.sampled_from(DTYPES), st.sampled_from([(), (3,)]), st.none())
RAGGED = st.builds(Spec, st.sampled_from(DTYPES), st.sampled_from([(), (2,)]), st.integers(0, 1))
SPECS = st.lists(FIXED | RAGGED, min_size=1, max_size=5)


@st.composite
def tables_like(draw: st.DrawFn, specs: list[Spec]) -> Table:
    """A table of 0 to 8 events with these columns, c0, c1, and so on."""
    events = draw(st.integers(0, 8))
    lengths = st.lists(st.integers(0, 3), min_size=events, max_size=events)
    offsets = [np.cumsum([0, *draw(lengths)], dtype=np.int64) for _ in range(2)]
    columns: dict[str, Any] = {}
    for number, spec in enumerate(specs):
        rows = events if spec.group is None else int(offsets[spec.group][-1])
        values = draw(_values(spec, rows))
        columns[f"c{number}"] = values if spec.group is None else Ragged(values, offsets[spec.group])
    return Table(columns, units={"c0": "mm"})


@st.composite
def tables(draw: st.DrawFn) -> Table:
    """A random table."""
    return draw(tables_like(draw(SPECS)))


@st.composite
def tables_with_items(draw: st.DrawFn) -> Table:
    """A table that has at least one ragged column: c0."""
    return draw(tables_like([draw(RAGGED), *draw(st.lists(FIXED | RAGGED, max_size=4))]))


@st.composite
def families(draw: st.DrawFn) -> list[Table]:
    """One to three tables with the same columns."""
    specs = draw(SPECS)
    return draw(st.lists(tables_like(specs), min_size=1, max_size=3))


@st.composite
def tables_and_windows(draw: st.DrawFn) -> tuple[Table, int, int | None]:
    """A table and a range to cut: mostly inside, sometimes reversed, counted from the end, or beyond it."""
    table = draw(tables())
    inside, anywhere = st.integers(0, len(table)), st.integers(-10, 10)
    return table, draw(inside | anywhere), draw(inside | anywhere | st.none())


def _values(spec: Spec, rows: int) -> st.SearchStrategy[Any]:
    dtype = np.dtype(spec.dtype)
    finite: Any = {"allow_nan": False, "allow_infinity": False} if dtype.kind == "f" else {}
    elements: st.SearchStrategy[Any] = hnp.from_dtype(dtype, **finite)
    return hnp.arrays(dtype, (rows, *spec.inner), elements=elements)
