"""Synthetic events of a silicon tracker, simulated by ACTS (PyPI's pyacts, the extra `hep`).

The detector is the GenericDetector of ACTS, which is that of the TrackML challenge: pixels (volumes 7, 8, 9), short
strips (12, 13, 14) and long strips (16, 17, 18), each a barrel between two end caps, with the material of ACTS, in a
field of 2 T along z. Fatras simulates the passage of the particles of `particle_gun` (multiple scattering, ionisation,
bremsstrahlung, photon conversion; no nuclear interactions, no decays). The digitisation of ACTS smears every crossing
of a module by RESOLUTION along its two axes. Every hit belongs to one particle: hits are not merged, and there is no
noise and no inefficiency. Exceptions: about one hit in 500,000 is lost at the edge of a module, and about one particle
in 100,000 is dropped because it loops too long. Units: mm, GeV.
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
from clew.recipes.tracking.particle_gun import MUON_GUN, ParticleGun
from clew.recipes.tracking.text_files import atomic_path

EVENTS_PER_FILE = 64
PILEUP_EVENTS_PER_FILE = 4
"""Events with pile-up are 10 to 100 times as large."""

_HIT_COLUMNS = ("x", "y", "z", "volume_id", "layer_id", "module_id", "track", "tx", "ty", "tz", "tpx", "tpy", "tpz")
_PARTICLE_COLUMNS = ("particle_id", "vx", "vy", "vz", "px", "py", "pz", "q", "pdg")
_UNITS = {
    **dict.fromkeys(("x", "y", "z", "tx", "ty", "tz", "vx", "vy", "vz"), "mm"),
    **dict.fromkeys(("tpx", "tpy", "tpz", "px", "py", "pz"), "GeV"),
}
_FILES = {  # the file of hits is written last: if it exists, the others exist
    "particles": ("particle_id", "vx", "vy", "vz", "px", "py", "pz", "q", "nhits"),
    "truth": ("hit_id", "track", "tx", "ty", "tz", "tpx", "tpy", "tpz", "hit_weight"),
    "hits": ("hit_id", "x", "y", "z", "volume_id", "layer_id", "module_id"),
}


def simulate_acts(events: int, seed: int, first: int = 0, *, gun: ParticleGun = MUON_GUN) -> Table:
    """Simulate events `first` to `first + events - 1` of the sample defined by `seed` and `gun`.

    An event depends on the seed, the gun and its own number only, so processes can simulate disjoint ranges.

    Args:
        events: Number of events.
        seed: Seed of the sample.
        first: Number of the first event.
        gun: The particles of an event.

    Returns:
        A table with the columns of hits of the TrackML reader (all hits of an event have the same `hit_weight`), and
        columns of particles (vertex, momentum at the vertex, charge, number of hits). `track` holds `particle_id`.

    Raises:
        RecipeError: pyacts is not installed.
        ConfigError: A number is negative.
    """
    if min(events, seed, first) < 0:
        raise ConfigError(f"events, seed, first must be 0 or more, got {events}, {seed}, {first}")
    # without any event the columns would be unknown
    event_arrays = acts_chain.simulate_events(
        max(events, 1), first, seed, lambda n: gun.generate(np.random.default_rng([seed, n]))
    )
    lost = gun.lost_hits
    if lost:
        event_arrays = [_without(each, lost, seed, first + number) for number, each in enumerate(event_arrays)]
    return _table(event_arrays, first).slice(0, events)


def _without(event: dict[str, NDArray[Any]], lost: float, seed: int, number: int) -> dict[str, NDArray[Any]]:
    """An event without a share of its hits."""
    keep = np.random.default_rng([seed, number, 1]).random(len(event["x"])) >= lost
    return {name: values[keep] if name in _HIT_COLUMNS else values for name, values in event.items()}


def write_acts(
    events: int, seed: int, folder: Path, *, first: int = 0, gun: ParticleGun = MUON_GUN, layout: str = "hdf5"
) -> Iterator[tuple[Path, int]]:
    """Write synthetic events under `folder`; yield each file and its number of events.

    File names contain the kind, the multiplicity, the pile-up and the seed, so samples do not overwrite each other. The
    layout `hdf5` writes tables of EVENTS_PER_FILE events (PILEUP_EVENTS_PER_FILE with pile-up) with hits and particles.
    The layout `trackml` writes CSV files as in the TrackML challenge, three per event, in a folder named after the
    sample.
    """
    if layout not in ("hdf5", "trackml"):
        raise ConfigError(f"no layout '{layout}'; choose from hdf5, trackml")
    name = f"synthetic-acts-{gun.label}-seed{seed}"
    size = PILEUP_EVENTS_PER_FILE if gun.pileup else EVENTS_PER_FILE
    for start in range(first, first + events, size):
        count = min(size, first + events - start)
        table = simulate_acts(count, seed, start, gun=gun)
        if layout == "trackml":
            for event in range(count):
                yield write_trackml(table.slice(event, event + 1), folder / name), 1
            continue
        path = folder / f"{name}-{start // size:05d}.h5"
        table.save(path)
        yield path, count


def write_trackml(event: Table, folder: Path) -> Path:
    """Write a table of one event as `eventN-hits.csv`, `-truth.csv` and `-particles.csv`. Returns the file of hits."""
    stem = f"event{event.fixed('event')[0]:09d}"
    for name, columns in _FILES.items():
        _write_csv(folder / f"{stem}-{name}.csv", {column: event.ragged(column).values for column in columns})
    return folder / f"{stem}-hits.csv"


def _write_csv(path: Path, columns: Mapping[str, NDArray[Any]]) -> None:
    import pyarrow
    from pyarrow import csv

    renamed = {"track": "particle_id", "hit_weight": "weight"}
    table = pyarrow.table({renamed.get(name, name): values for name, values in columns.items()})
    with atomic_path(path) as temporary:
        csv.write_csv(table, str(temporary), csv.WriteOptions(quoting_style="none"))


def _table(events: list[dict[str, NDArray[Any]]], first: int) -> Table:
    """The events of a simulation as one table."""
    hits, particles = (_lengths(events, name) for name in ("x", "particle_id"))
    hit_id = Ragged.from_lengths(np.concatenate([np.arange(1, count + 1) for count in hits]), hits)
    particle_id = Ragged.from_lengths(_joined(events, "particle_id"), particles)
    particle_index = (
        np.repeat(particle_id.offsets[:-1], hits) + _joined(events, "track") - 1
    )  # of each hit's particle in the table
    columns: dict[str, Ragged | NDArray[Any]] = {
        "event": np.arange(first, first + len(events)),
        "hit_id": hit_id,
        **{name: hit_id.share(_joined(events, name)) for name in _HIT_COLUMNS},
        "hit_weight": hit_id.share(np.repeat(1 / np.maximum(hits, 1), hits)),
        **{name: particle_id.share(_joined(events, name)) for name in _PARTICLE_COLUMNS},
        "nhits": particle_id.share(np.bincount(particle_index, minlength=len(particle_id.values)).astype(np.int32)),
    }
    return Table(columns, units=_UNITS)


def _lengths(events: list[dict[str, NDArray[Any]]], name: str) -> NDArray[np.int64]:
    return np.array([len(event[name]) for event in events], dtype=np.int64)


def _joined(events: list[dict[str, NDArray[Any]]], name: str) -> NDArray[Any]:
    return np.concatenate([event[name] for event in events])
