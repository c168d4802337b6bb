"""TrackML events cut into sectors, as graphs in one npz: hits, candidate edges, and which edges are true.

Its own two halves (`train_`, `valid_`) hold sectors of the same events. They are read as one sample, and the event is
kept as `collision`, so that `prepare.split_by: collision` puts all sectors of an event on one side.
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
"""In phi: angles in the file are relative to the middle of their sector, in units of its half-width."""
SHORTEST = 3
"""Hits that true edges must join for them to be a track."""
SAMPLES = 200
"""Sectors in a piece."""


def holds_graphs(path: str) -> bool:
    """Whether a file is laid out like this: an npz with edges in it."""
    if readers.kind_of(path) != "npz":
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            return "train_src.npy" in archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return False  # not here, or not what its name says: the npz reader says it better


def read(path: str) -> Iterator[Table]:
    """The sectors of both halves, as events with edges: columns as text gives them, and `collision`, `link`, `label`.

    `event` is 100 times the collision plus the sector; x, y, z in mm; `station` is the layer of the barrel; `track`
    numbers what the true edges join.

    Raises:
        DataError: arrays are missing.
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
    like = Ragged(radius * np.cos(phi), scaled.offsets)
    link = Ragged(np.stack([src.values, dst.values], axis=1), src.offsets)
    collision = piece.fixed(f"{half}_event").astype(np.int64)
    columns: dict[str, Any] = {
        "event": 100 * collision + piece.fixed(f"{half}_sector"),
        "collision": collision,
        "x": like,
        "y": like.share(radius * np.sin(phi)),
        "z": like.share(z),
        "station": like.share(_layer(radius)),
        "track": like.share(_tracks(like, link, y.values > 0)),
        "link": link,
        "label": link.share(y.values.astype(np.uint8)),
    }
    return Table(columns, units=dict.fromkeys("xyz", "mm"), index_of={"link": "x"})


def _layer(radius: NDArray[np.float64]) -> NDArray[np.int64]:
    """The barrel layer nearest in radius."""
    radii = np.array(PRESETS["trackml"]["radii"])
    return np.searchsorted((radii[1:] + radii[:-1]) / 2, radius).astype(np.int64)


def _tracks(hits: Ragged, link: Ragged, true: NDArray[np.bool_]) -> NDArray[np.int64]:
    """What true edges join, where it is at least SHORTEST hits; -1 elsewhere."""
    pairs = link.values.astype(np.int64) + hits.offsets[link.events][:, None]
    found = tracks.components(pairs[true], len(hits.values))
    size = np.bincount(found[found >= 0], minlength=len(found) + 1)
    return np.where(size[found] >= SHORTEST, found, -1)
