"""Synthetic events of a silicon tracker, simulated by ACTS (PyPI's pyacts, the extra `hep`).

The detector is ACTS' GenericDetector, the one of the TrackML challenge: pixels (volumes 7, 8, 9), short strips (12, 13,
14) and long strips (16, 17, 18), each a barrel between two end caps, with the material ACTS gives it, in a field of
2 T along z. Fatras takes the particles of `gun` through it (multiple scattering, ionisation, bremsstrahlung, photon
conversion; no nuclear interactions, no decays), ACTS' digitisation smears every crossing of a module by RESOLUTION
along its two axes. Every hit is of one particle: hits are not merged, there is no noise and no inefficiency, but for
one hit in some 500,000 that is lost at the edge of a module and one particle in some 100,000 that loops too long.
Units: mm, GeV.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clew import Ragged, Table
from clew.errors import ConfigError
from clew.recipes.tracking import acts_chain
from clew.recipes.tracking.gun import MUONS, Gun
from clew.recipes.tracking.writing import whole

EVENTS_A_FILE = 64

_HIT_COLUMNS = ("x", "y", "z", "volume_id", "layer_id", "module_id", "track", "tx", "ty", "tz", "tpx", "tpy", "tpz")
_PARTICLE_COLUMNS = ("particle_id", "vx", "vy", "vz", "px", "py", "pz", "q", "pdg")
_UNITS = {
    **dict.fromkeys(("x", "y", "z", "tx", "ty", "tz", "vx", "vy", "vz"), "mm"),
    **dict.fromkeys(("tpx", "tpy", "tpz", "px", "py", "pz"), "GeV"),
}
_FILES = {  # the hits come last: where they are, their truth is
    "particles": ("particle_id", "vx", "vy", "vz", "px", "py", "pz", "q", "nhits"),
    "truth": ("hit_id", "track", "tx", "ty", "tz", "tpx", "tpy", "tpz", "hit_weight"),
    "hits": ("hit_id", "x", "y", "z", "volume_id", "layer_id", "module_id"),
}


def simulate_acts(events: int, seed: int, first: int = 0, *, gun: Gun = MUONS) -> Table:
    """Make events `first` to `first + events - 1` of the endless sample that `seed` and `gun` name.

    An event depends on those and its own number only, so a long sample is made a range at a time, and workers can make
    disjoint ranges.

    The columns of hits are those of the TrackML reader, every hit of the same `hit_weight`; a second set of columns
    describes the particles (vertex, momentum there, charge, hits), `particle_id` being what `track` says.

    Raises:
        RecipeError: pyacts is not installed.
        ConfigError: a negative number.
    """
    if min(events, seed, first) < 0:
        raise ConfigError(f"events, seed, first must be 0 or more, got {events}, {seed}, {first}")
    # a chain of no events has no columns to tell
    made = acts_chain.run(max(events, 1), first, seed, lambda n: gun.fire(np.random.default_rng([seed, n])))
    return _table(made, first).slice(0, events)


def write_acts(
    events: int, seed: int, folder: Path, *, first: int = 0, gun: Gun = MUONS, layout: str = "hdf5"
) -> Iterator[tuple[Path, int]]:
    """Write synthetic events under `folder`; yield each file and its events, one file in memory at a time.

    Names say kind, multiplicity and seed: no sample overwrites another. `hdf5`: tables of EVENTS_A_FILE events, hits
    and particles. `trackml`: CSV files as those of the challenge, three an event, in a folder whose name says what
    they are (their own names are the challenge's).
    """
    if layout not in ("hdf5", "trackml"):
        raise ConfigError(f"no layout '{layout}'; choose from hdf5, trackml")
    name = f"synthetic-acts-{gun.label}-seed{seed}"
    for start in range(first, first + events, EVENTS_A_FILE):
        count = min(EVENTS_A_FILE, first + events - start)
        table = simulate_acts(count, seed, start, gun=gun)
        if layout == "trackml":
            for event in range(count):
                yield write_trackml(table.slice(event, event + 1), folder / name), 1
            continue
        path = folder / f"{name}-{start // EVENTS_A_FILE:05d}.h5"
        table.save(path)
        yield path, count


def write_trackml(event: Table, folder: Path) -> Path:
    """Write a table of one event as `eventN-hits.csv`, `-truth.csv` and `-particles.csv`; returns the first."""
    stem = f"event{event.fixed('event')[0]:09d}"
    for name, columns in _FILES.items():
        _write_csv(folder / f"{stem}-{name}.csv", {column: event.ragged(column).values for column in columns})
    return folder / f"{stem}-hits.csv"


def _write_csv(path: Path, columns: Mapping[str, NDArray[Any]]) -> None:
    import pyarrow
    from pyarrow import csv

    renamed = {"track": "particle_id", "hit_weight": "weight"}
    table = pyarrow.table({renamed.get(name, name): values for name, values in columns.items()})
    with whole(path) as temporary:
        csv.write_csv(table, str(temporary), csv.WriteOptions(quoting_style="none"))


def _table(events: list[dict[str, NDArray[Any]]], first: int) -> Table:
    """The events of a chain as one table."""
    hits, particles = (_lengths(events, name) for name in ("x", "particle_id"))
    like = Ragged.from_lengths(np.concatenate([np.arange(1, count + 1) for count in hits]), hits)
    truth = Ragged.from_lengths(_joined(events, "particle_id"), particles)
    number = np.repeat(truth.offsets[:-1], hits) + _joined(events, "track") - 1  # of each hit's particle in the table
    columns: dict[str, Ragged | NDArray[Any]] = {
        "event": np.arange(first, first + len(events)),
        "hit_id": like,
        **{name: like.share(_joined(events, name)) for name in _HIT_COLUMNS},
        "hit_weight": like.share(np.repeat(1 / np.maximum(hits, 1), hits)),
        **{name: truth.share(_joined(events, name)) for name in _PARTICLE_COLUMNS},
        "nhits": truth.share(np.bincount(number, minlength=len(truth.values)).astype(np.int32)),
    }
    return Table(columns, units=_UNITS)


def _lengths(events: list[dict[str, NDArray[Any]]], name: str) -> NDArray[np.int64]:
    return np.array([len(event[name]) for event in events], dtype=np.int64)


def _joined(events: list[dict[str, NDArray[Any]]], name: str) -> NDArray[Any]:
    return np.concatenate([event[name] for event in events])
