"""Reader for TrackML events cut into sectors, stored as graphs in one npz file: hits, candidate edges, true edges.

The two parts of the file (`train_`, `valid_`) contain sectors of the same events. They are read as one sample. The
column `collision` holds the event, so that `prepare.split_by: collision` puts all sectors of an event in one split.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clew import Ragged, Table, readers
from clew.errors import DataError
from clew.recipes.tracking import tracks
from clew.recipes.tracking.geometry import PRESETS

HALVES = ("train", "valid")
SECTORS = 8
"""Number of sectors in phi. Angles in the file are relative to the centre of the sector, in units of its half width."""
MIN_HITS = 3
"""Smallest number of hits of a true track."""
SAMPLES = 200
"""Sectors per piece that is read."""


def holds_graphs(path: str) -> bool:
    """Whether a file is an npz file with edges."""
    if readers.kind_of(path) != "npz":
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            return "train_src.npy" in archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return False  # the npz reader gives the better error message


def read(path: str) -> Iterator[Table]:
    """Read the sectors of both parts as events with the columns of text files and `collision`, `link`, `label`.

    `event` is 100 times the collision plus the sector. x, y, z are in mm. `station` is the layer of the barrel. `track`
    numbers the connected components of the true edges.

    Raises:
        DataError: Arrays are missing.
    """
    for half in HALVES:
        columns = [f"{half}_{name}" for name in ("event", "sector", "x", "src", "dst", "y")]
        offsets = {f"{half}_x": f"{half}_node_off"}
        offsets |= {f"{half}_{name}": f"{half}_edge_off" for name in ("src", "dst", "y")}
        for piece in readers.read(path, "npz", columns=columns, offsets=offsets, chunk=SAMPLES):
            yield _events(piece, half)


def _events(piece: Table, half: str) -> Table:
    scaled, src, dst, y = (piece.ragged(f"{half}_{name}") for name in ("x", "src", "dst", "y"))
    if scaled.values.ndim != 2 or scaled.values.shape[1] != 3:
        raise DataError(f"array '{half}_x' has shape {scaled.values.shape}, expected (hits, 3): r, phi, z")
    radius, phi, z = scaled.values.astype(np.float64).T * np.array([[1000.0], [np.pi / SECTORS], [1000.0]])
    x = Ragged(radius * np.cos(phi), scaled.offsets)
    link = Ragged(np.stack([src.values, dst.values], axis=1), src.offsets)
    collision = piece.fixed(f"{half}_event").astype(np.int64)
    columns: dict[str, Any] = {
        "event": 100 * collision + piece.fixed(f"{half}_sector"),
        "collision": collision,
        "x": x,
        "y": x.share(radius * np.sin(phi)),
        "z": x.share(z),
        "station": x.share(_layer(radius)),
        "track": x.share(_tracks(x, link, y.values > 0)),
        "link": link,
        "label": link.share(y.values.astype(np.uint8)),
    }
    return Table(columns, units=dict.fromkeys("xyz", "mm"), index_of={"link": "x"})


def _layer(radius: NDArray[np.float64]) -> NDArray[np.int64]:
    """The barrel layer with the nearest radius."""
    radii = np.array(PRESETS["trackml"]["radii"])
    return np.searchsorted((radii[1:] + radii[:-1]) / 2, radius).astype(np.int64)


def _tracks(hits: Ragged, link: Ragged, true: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Connected components of true edges with at least MIN_HITS hits; -1 for other hits."""
    pairs = link.values.astype(np.int64) + hits.offsets[link.events][:, None]
    track = tracks.connected_components(pairs[true], len(hits.values))
    size = np.bincount(track[track >= 0], minlength=len(track) + 1)
    return np.where(size[track] >= MIN_HITS, track, -1)
