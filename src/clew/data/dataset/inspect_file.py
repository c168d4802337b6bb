"""The content of a file that a reader accepts, for people: columns, types, lengths, ranges and histograms."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from clew.data import readers
from clew.data.dataset.inspect import HISTOGRAM_EVENTS, Histogram, column_histogram, histogram_figure
from clew.data.table import Ragged, Table, concat

FILE_HEADER = ("column", "type", "unit", "lengths", "min", "mean", "max")


@dataclass(frozen=True)
class FileContent:
    """The first events of a file."""

    location: str
    reader: str
    table: Table
    complete: bool
    """Whether these are all events of the file."""

    def rows(self) -> list[tuple[str, ...]]:
        """Return one line per column, with the cells of `FILE_HEADER`."""
        return [self._row(name) for name in self.table]

    def histograms(self) -> list[Histogram]:
        """Return one histogram per column of numbers."""
        sources = []
        for name, column in self.table.items():
            values = (column.values if isinstance(column, Ragged) else column).ravel()
            finite = values[np.isfinite(values)] if values.dtype.kind == "f" else values
            if finite.size and finite.dtype.kind in "biuf":
                sources.append(column_histogram(name, self.table.units.get(name, ""), finite))
        return sources

    def title(self) -> str:
        """Return what was read, in one line."""
        count = f"{len(self.table):,} events" if self.complete else f"the first {len(self.table):,} events"
        return f"read by {self.reader}: {count}, {len(list(self.table))} columns"

    def _row(self, name: str) -> tuple[str, ...]:
        column, field = self.table[name], self.table.schema[name]
        kind = f"{'ragged ' if field.ragged else ''}{np.dtype(field.dtype)}{''.join(f'[{n}]' for n in field.shape)}"
        lengths = ""
        if isinstance(column, Ragged) and len(column.lengths):
            numbers = column.lengths
            lengths = f"{numbers.min()} to {numbers.max()}, mean {numbers.mean():.3g}"
        values = (column.values if isinstance(column, Ragged) else column).ravel()
        if not values.size or values.dtype.kind not in "biuf":
            return name, kind, field.unit, lengths, "", "", ""
        numbers = values.astype(np.float64)
        cells = [f"{statistic(numbers):.4g}" for statistic in (np.nanmin, np.nanmean, np.nanmax)]
        return name, kind, field.unit, lengths, *cells


def read_content(location: str, kind: str | None = None) -> FileContent:
    """Read the first events of a file.

    Args:
        location: Path or URL of the file.
        kind: Name of the reader. By default the name of the file decides.

    Raises:
        DataError: no reader accepts the file, or it cannot be read.
    """
    pieces = readers.read(location, kind)
    tables: list[Table] = []
    events = 0
    for number in range(len(pieces)):
        if events >= HISTOGRAM_EVENTS:
            break
        tables.append(pieces[number])
        events += len(tables[-1])
    return FileContent(location, kind or readers.kind_of(location), concat(tables), len(tables) == len(pieces))


def write_file_page(content: FileContent, path: Path) -> Path:
    """Write the content of a file as one HTML page."""
    from clew.core.html_table import html_table
    from clew.runs.html_page import write_page

    columns = html_table("", content.rows(), header=FILE_HEADER)
    drawn = [histogram_figure(histogram) for histogram in content.histograms()]
    parts = [("Columns", columns, []), ("Distributions", "", drawn)]
    return write_page(path, Path(content.location).name, content.title(), parts)
