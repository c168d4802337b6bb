"""Arrays, dictionaries, data frames and awkward arrays as tables, and tables as the same kind of data again."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from clew.data.table.column import Column
from clew.data.table.ragged import Array, Ragged
from clew.data.table.table import Table
from clew.errors import ConfigError


def is_frame(data: Any) -> bool:
    """Return whether this is a data frame, of pandas for example."""
    return hasattr(data, "columns") and hasattr(data, "to_numpy")


def is_awkward(data: Any) -> bool:
    """Return whether this is an awkward array."""
    awkward = sys.modules.get("awkward")
    return awkward is not None and isinstance(data, awkward.Array)


def is_plain_array(data: Any) -> bool:
    """Return whether this is an array without names of columns: of NumPy, torch or awkward, or a list."""
    if is_awkward(data):
        return not data.fields
    return isinstance(data, (np.ndarray, list)) or hasattr(data, "detach")


def is_polars(data: Any) -> bool:
    """Return whether this is a data frame of polars."""
    polars = sys.modules.get("polars")
    return polars is not None and isinstance(data, polars.DataFrame)


def is_arrow(data: Any) -> bool:
    """Return whether this is a table of Arrow."""
    arrow = sys.modules.get("pyarrow")
    return arrow is not None and isinstance(data, (arrow.Table, arrow.RecordBatch))


def to_table(data: Any, names: Sequence[str] = (), needed: Sequence[str] | None = None) -> Table:
    """Return data in memory as a table.

    Ragged columns may be `Ragged`, awkward arrays or lists of lists. Those with the same lengths in every event
    describe the same items.

    Args:
        data: A table, columns by name, a data frame of pandas or polars, a table of Arrow, an awkward array with
            fields, or an array. Columns of a data frame that hold no numbers (text, dates) are left out.
        names: Names of the columns of an array without names.
        needed: The columns that are needed, if they exist. Others are not read from an awkward array. Default: all.

    Raises:
        ConfigError: the data has another form, or an array does not have these columns.
        DataError: a column does not hold numbers, or columns differ in length.

    Example:
        >>> to_table({"pt": [[1.0, 2.0], []], "eta": [[0.1, 0.2], []], "met": [5.0, 6.0]})
        Table(2 events; pt: ragged float64, eta: ragged float64, met: float64)
    """
    if isinstance(data, Table):
        return data
    if is_awkward(data) and data.fields:
        from clew.data.table.interop import from_awkward

        return from_awkward(data, needed, missing=True)
    if is_arrow(data):
        return Table.from_arrow(data)
    if is_polars(data):
        return Table.from_arrow(data.select(_numeric_columns(data)).to_arrow())
    if isinstance(data, Mapping):
        columns = {str(name): to_column(value) for name, value in data.items()}
    elif is_frame(data):
        every = {str(name): to_column(data[name].to_numpy()) for name in data.columns}
        columns = {name: column for name, column in every.items() if isinstance(column, Ragged) or _is_number(column)}
    elif is_plain_array(data):
        columns = _array_columns(to_column(data), names)
    else:
        kinds = "a clew.Table, arrays by name, a data frame, an awkward array or an array"
        raise ConfigError(f"cannot read events from a {type(data).__name__}; pass {kinds}")
    return Table(_share_offsets(columns))


def to_column(values: Any) -> Column:
    """Return values as a column: an array, or a `Ragged` for awkward arrays and lists of different lengths."""
    if isinstance(values, Ragged):
        return values
    if hasattr(values, "detach"):
        return np.asarray(values.detach().cpu().numpy())
    if is_awkward(values):
        import awkward

        return Table.from_awkward(awkward.Array({"values": values}))["values"]
    try:
        array = np.asarray(values)
    except ValueError:  # lists of different lengths
        return Ragged.from_lists(values)
    is_lists = array.dtype == object and array.ndim == 1 and all(np.ndim(item) for item in array)
    return Ragged.from_lists(list(array)) if is_lists else array


def like(data: Any, table: Table) -> Any:
    """Return a table as the kind of data that `data` is.

    Args:
        data: What `to_table` accepts.
        table: One row per event of `data`.

    Returns:
        A table for a table; a dictionary of arrays for a mapping; a data frame with the index of `data` for a data
        frame of pandas, in which a column of several values per event becomes several columns; a data frame of polars
        or a table of Arrow for these; an awkward array with fields for an awkward array; for an array an array, or a
        dictionary if the table has more than one column.

    Example:
        >>> like({"x": [1.0]}, Table({"score": [0.5]}))
        {'score': array([0.5])}
    """
    if isinstance(data, Table):
        return table
    if is_arrow(data):
        return table.to_arrow()
    if is_polars(data):
        return table.to_polars()
    if is_frame(data):
        return type(data)(_frame_columns(table), index=data.index)
    if is_awkward(data):
        return table.to_awkward()
    columns = {name: _plain(column) for name, column in table.items()}
    if isinstance(data, Mapping):
        return columns
    if hasattr(data, "detach"):
        import torch

        columns = {n: torch.from_numpy(c) if isinstance(c, np.ndarray) else c for n, c in columns.items()}
    return next(iter(columns.values())) if len(columns) == 1 else columns


def to_pandas(table: Table) -> Any:
    """Return a table as a data frame of pandas."""
    import pandas

    return pandas.DataFrame(_frame_columns(table))


def to_polars(table: Table) -> Any:
    """Return a table as a data frame of polars."""
    import polars

    return polars.from_arrow(table.to_arrow())


def _numeric_columns(frame: Any) -> list[str]:
    """The columns of a data frame of polars that hold numbers, or lists or arrays of numbers."""

    def innermost(kind: Any) -> Any:
        return innermost(kind.inner) if hasattr(kind, "inner") else kind

    kinds = {name: innermost(kind) for name, kind in frame.schema.items()}
    return [name for name, kind in kinds.items() if kind.is_numeric() or str(kind) == "Boolean"]


def _array_columns(column: Column, names: Sequence[str]) -> dict[str, Column]:
    if not names:
        raise ConfigError("an array has no names of columns; pass the events as a dictionary of arrays or a data frame")
    if len(names) == 1:
        return {names[0]: column}
    values = column.values if isinstance(column, Ragged) else column
    if values.ndim != 2 or values.shape[1] != len(names):
        shape = "ragged" if isinstance(column, Ragged) else "x".join(map(str, values.shape))
        raise ConfigError(f"the array is {shape}; its columns must be the {len(names)} features {', '.join(names)}")
    parts = [np.ascontiguousarray(values[:, number]) for number in range(len(names))]
    return {n: column.share(p) if isinstance(column, Ragged) else p for n, p in zip(names, parts, strict=True)}


def _share_offsets(columns: Mapping[str, Column]) -> dict[str, Column]:
    """Let ragged columns with equal lengths share one offsets array."""
    shared: dict[bytes, Ragged] = {}
    result: dict[str, Column] = {}
    for name, column in columns.items():
        if isinstance(column, Ragged):
            column = shared.setdefault(column.offsets.tobytes(), column).share(column.values)
        result[name] = column
    return result


def _is_number(column: Array) -> bool:
    return column.dtype.kind in "biuf"


def _plain(column: Column) -> Any:
    """A column as an array; as an awkward array if it is ragged."""
    return Table({"values": column}).to_awkward()["values"] if isinstance(column, Ragged) else column


def _frame_columns(table: Table) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    for name, column in table.items():
        if isinstance(column, Ragged):
            columns[name] = list(column)
        elif column.ndim == 1:
            columns[name] = column
        else:
            flat: Array = column.reshape(len(column), -1)
            single = flat.shape[1] == 1
            columns |= {name if single else f"{name}_{k}": flat[:, k] for k in range(flat.shape[1])}
    return columns
