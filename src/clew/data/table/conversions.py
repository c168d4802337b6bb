"""The methods of a table that convert it to and from other kinds of data and files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from clew.data.table.table import Table


class TableConversions:
    """Conversions of a `Table`. Values are shared with the other library, not copied, where its layout allows it."""

    def to_awkward(self) -> Any:
        """Return a record array with one field per column. Values are shared; units are lost."""
        from clew.data.table import interop

        return interop.to_awkward(cast("Table", self))

    @staticmethod
    def from_awkward(array: Any, *, columns: Sequence[str] | None = None) -> Table:
        """Return a table from a record array whose fields are flat, regular, or lists of one level.

        A field that holds records, such as `Jet` of coffea's NanoEvents, becomes one column per field of the records:
        `Jet_pt`, as the branches of NanoAOD are called. Values are shared if the array has no gaps.

        Args:
            array: The array.
            columns: The columns to convert; of arrays that are read when they are used, the others are not read.
                Default: all.

        Raises:
            DataError: a field has another type, or there is no such column.

        Example:
            >>> import awkward as ak, clew
            >>> events = ak.Array([{"met": 20.0, "Jet": [{"pt": 50.0}, {"pt": 30.0}]}, {"met": 5.0, "Jet": []}])
            >>> clew.Table.from_awkward(events)
            Table(2 events; met: float64, Jet_pt: ragged float64)
        """
        from clew.data.table import interop

        return interop.from_awkward(array, columns)

    def to_arrow(self) -> Any:
        """Return a table of Arrow. Values are shared; units are lost."""
        from clew.data.table import interop

        return interop.to_arrow(cast("Table", self))

    @staticmethod
    def from_arrow(arrow: Any) -> Table:
        """Return a table from a table of Arrow, whose columns hold numbers or lists of numbers.

        Raises:
            DataError: a column holds something else, or has empty entries.
        """
        from clew.data.table import interop

        return interop.from_arrow(arrow)

    def to_pandas(self) -> Any:
        """Return a data frame of pandas. A ragged column holds one array per event; an array per event is several
        columns."""
        from clew.data.table import in_memory

        return in_memory.to_pandas(cast("Table", self))

    def to_polars(self) -> Any:
        """Return a data frame of polars. Ragged columns are lists."""
        from clew.data.table import in_memory

        return in_memory.to_polars(cast("Table", self))

    @staticmethod
    def from_frame(frame: Any) -> Table:
        """Return a table from a data frame of pandas or polars. Columns without numbers (text, dates) are left out.

        Raises:
            DataError: a column has empty entries, or lists of something else than numbers.
        """
        from clew.data.table import in_memory

        return in_memory.to_table(frame)

    def save(self, path: str | Path) -> None:
        """Write the table to an HDF5 file, completely or not at all."""
        from clew.data.table import hdf5

        hdf5.save(cast("Table", self), Path(path))

    @staticmethod
    def load(path: str | Path, *, columns: Sequence[str] | None = None) -> Table:
        """Read a table from an HDF5 file that `save` or `clew prepare` wrote.

        Args:
            path: The file.
            columns: The columns to read. None reads all.

        Raises:
            DataError: the file is missing or damaged, or does not contain a table.
        """
        from clew.data.table import hdf5

        return hdf5.load(Path(path), columns=columns)
