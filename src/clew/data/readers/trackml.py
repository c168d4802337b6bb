"""The TrackML reader: `eventN-hits.csv` with `eventN-truth.csv`, one event per pair of files."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from clew.data.readers.base import FilePiece, Reader, open_file
from clew.data.table import Field, Ragged, Table
from clew.errors import DataError
from clew.storage import expand

_NAME = re.compile(r"event(\d+)-hits\.csv(\.gz)?", re.IGNORECASE)
_COMPRESSIONS = ("", ".gz")
_HITS = {"hit_id": "<i8", "x": "<f4", "y": "<f4", "z": "<f4", "volume_id": "<i4", "layer_id": "<i4", "module_id": "<i4"}
_TRUTH = {
    "particle_id": "<i8",
    "tx": "<f4",
    "ty": "<f4",
    "tz": "<f4",
    "tpx": "<f4",
    "tpy": "<f4",
    "tpz": "<f4",
    "weight": "<f8",
}
_RENAMED = {"particle_id": "track", "weight": "hit_weight"}
_UNITS = {**dict.fromkeys(("x", "y", "z", "tx", "ty", "tz"), "mm"), **dict.fromkeys(("tpx", "tpy", "tpz"), "GeV")}


class TrackMLReader(Reader):
    """Settings of the TrackML reader.

    `track` is the id of the particle. It is -1 for noise (0 in the files), and for all hits if there is no truth file.
    Other columns of the files are ignored, and so are the files `eventN-cells.csv`, `eventN-particles.csv` and
    `detectors.csv` in the same folder.
    """

    endings: ClassVar[tuple[str, ...]] = ("-hits.csv", "-hits.csv.gz")

    @classmethod
    def accepts(cls, name: str) -> bool:
        return _NAME.fullmatch(name) is not None

    def companion_files(self, location: str) -> list[str]:
        files = [file for name in _names_beside(location, "truth") for file in expand(name)]
        return files[:1]

    def ignored_files(self, location: str) -> list[str]:
        folder, slash, _ = location.rpartition("/")
        detectors = [f"{folder}{slash}detectors.csv{ending}" for ending in _COMPRESSIONS]
        return [*_names_beside(location, "cells", "particles", "truth"), *detectors]

    def declared_schema(self) -> dict[str, Field]:
        inside = {
            _RENAMED.get(name, name): Field(dtype, ragged=True, unit=_UNITS.get(name, ""))
            for name, dtype in {**_HITS, **_TRUTH}.items()
        }
        return {"event": Field("<i8"), **inside}

    def pieces(self, location: str) -> list[FilePiece]:
        return [FilePiece(0, 1)]

    def load(self, location: str, piece: FilePiece) -> Table:
        match = _NAME.fullmatch(PurePosixPath(location).name)
        if not match:
            raise DataError("a TrackML event is named eventNNN-hits.csv")
        hits = _columns(location, _HITS)
        truth = self._truth(location, hits["hit_id"])
        like = Ragged.from_lengths(hits["hit_id"], [len(hits["hit_id"])])
        inside: dict[str, Any] = {name: like.share(values) for name, values in {**hits, **truth}.items()}
        return Table({"event": np.array([int(match[1])], dtype=np.int64), **inside}, units=_UNITS)

    def _truth(self, location: str, hit_id: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Return the truth in the order of the hits; noise if there is none."""
        files = self.companion_files(location)
        if not files:
            nothing = {_RENAMED.get(n, n): np.zeros(len(hit_id), dtype) for n, dtype in _TRUTH.items()}
            return {**nothing, "track": np.full(len(hit_id), -1, dtype=np.int64)}
        name = PurePosixPath(files[0]).name
        try:
            columns = _columns(files[0], {"hit_id": "<i8", **_TRUTH})
        except DataError as error:
            raise DataError(f"{name}: {error}") from error
        unknown = hit_id[~np.isin(hit_id, columns["hit_id"])]
        if len(unknown):
            raise DataError(f"{name} does not have hit {unknown[0]}")
        order = np.argsort(columns["hit_id"], kind="stable")
        place = order[np.searchsorted(columns["hit_id"], hit_id, sorter=order)]
        truth = {_RENAMED.get(column, column): columns[column][place] for column in _TRUTH}
        return {**truth, "track": np.where(truth["track"] == 0, -1, truth["track"])}


def _names_beside(location: str, *kinds: str) -> list[str]:
    """Return the names that other files of the same event may have."""
    if not _NAME.fullmatch(location.rpartition("/")[2]):
        return []
    stem = re.sub(r"-hits\.csv(\.gz)?$", "", location, flags=re.IGNORECASE)
    return [f"{stem}-{kind}.csv{ending}" for kind in kinds for ending in _COMPRESSIONS]


def _columns(location: str, dtypes: dict[str, str]) -> dict[str, NDArray[Any]]:
    from pyarrow import ArrowException, csv, from_numpy_dtype, input_stream

    types = {name: from_numpy_dtype(np.dtype(dtype)) for name, dtype in dtypes.items()}
    choice = csv.ConvertOptions(include_columns=list(dtypes), column_types=types, null_values=[])
    with open_file(location) as stream:
        try:
            lines = input_stream(stream, compression="gzip" if location.lower().endswith(".gz") else None)
            table = csv.read_csv(lines, csv.ReadOptions(use_threads=False), convert_options=choice)
        except (ArrowException, KeyError, OSError) as error:
            raise DataError(str(error.args[0] if error.args else error)) from error
    return {name: table[name].to_numpy() for name in dtypes}
