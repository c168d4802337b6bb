"""Events: primary particles, their transport, their images, and files of events."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator as Random

from clew import Ragged, Table
from clew.errors import ConfigError
from clew.recipes.lartpc.columns import CHARGE, CLASSES, ENERGY, EVENT, INDEX, LABEL, SHAPE, SIZE, VERTEX
from clew.recipes.lartpc.generate import particles as p
from clew.recipes.lartpc.generate.config import LArTPCGeneratorConfig
from clew.recipes.lartpc.generate.particles import Floats, Ints, ParticleStack
from clew.recipes.lartpc.generate.transport import Transport, World
from clew.recipes.lartpc.readout import Readout

VERSION = 2
"""Increased with every change that changes an event."""
EVENTS_PER_BLOCK = 16
"""Events that share one random stream."""
EVENTS_PER_FILE = 256
KINDS_OF_CLASS = (
    (p.GAMMA, p.GAMMA),
    (p.ELECTRON, p.POSITRON),
    (p.MUON, p.ANTIMUON),
    (p.PION_MINUS, p.PION_PLUS),
    (p.KAON_MINUS, p.KAON_PLUS),
)
"""The negative and the positive particle of each of CLASSES."""
MARGIN = 100.0
"""Particles are followed this far outside the detector, cm, because they may come back."""
COSMIC_ENERGY = (2000.0, 2.7)
"""Scale (MeV) and power of the energy spectrum of muons at the surface."""


def write_events(
    events: int,
    seed: int,
    folder: Path,
    *,
    first: int = 0,
    config: LArTPCGeneratorConfig | None = None,
    readout: Readout | None = None,
    size: tuple[int, int] = SIZE,
) -> Iterator[tuple[Path, int]]:
    """Write synthetic events to files of EVENTS_PER_FILE events.

    Args:
        events: Number of events.
        seed: Seed of the sample.
        folder: Folder of the files.
        first: Number of the first event, a multiple of EVENTS_PER_BLOCK.
        config: What to generate.
        readout: The read-out of the detector.
        size: Wires and ticks of the images.

    Yields:
        Each file and its number of events.

    Raises:
        ConfigError: An argument is negative, or `first` is not the start of a block.
    """
    if min(events, seed, first) < 0 or first % EVENTS_PER_BLOCK:
        raise ConfigError(
            f"events, seed must be 0 or more, first a multiple of {EVENTS_PER_BLOCK}, got {events}, {seed}, {first}"
        )
    config, readout = config or LArTPCGeneratorConfig(), readout or Readout()
    folder.mkdir(parents=True, exist_ok=True)
    for start in range(first, first + events, EVENTS_PER_FILE):
        count = min(EVENTS_PER_FILE, first + events - start)
        block = start // EVENTS_PER_BLOCK
        name = f"synthetic-lartpc-v{VERSION}-{config.label}-{size[0]}x{size[1]}-seed{seed}-{block:06d}.h5"
        simulate(count, seed, start, config=config, readout=readout, size=size).save(folder / name)
        yield folder / name, count


def simulate(
    events: int,
    seed: int,
    first: int = 0,
    *,
    config: LArTPCGeneratorConfig | None = None,
    readout: Readout | None = None,
    size: tuple[int, int] = SIZE,
) -> Table:
    """Return events `first` to `first + events - 1` of the sample of a seed and settings.

    A sample has no end, and its events do not depend on the range that is asked for. The table has the columns of
    `columns.py` and these: `pdg`, `visible` (energy deposited in the read-out volume in GeV, with cosmic muons),
    `history` (bits of `transport.HISTORY`), `cosmics` (number of cosmic muons), `generator` (VERSION).
    """
    config, readout = config or LArTPCGeneratorConfig(), readout or Readout()
    rows: list[dict[str, Any]] = []
    for block in range(first // EVENTS_PER_BLOCK, (first + max(events, 1) - 1) // EVENTS_PER_BLOCK + 1):
        rows += _simulate_block(block, np.random.default_rng([seed, block]), config, readout, size)
    skipped = first % EVENTS_PER_BLOCK
    return _events_table(rows[skipped : skipped + events], size)


def _simulate_block(
    number: int, rng: Random, config: LArTPCGeneratorConfig, readout: Readout, size: tuple[int, int]
) -> list[dict[str, Any]]:
    box = np.array([size[1] * readout.step, config.height, size[0] * readout.pitch])
    event = number * EVENTS_PER_BLOCK + np.arange(EVENTS_PER_BLOCK)
    names = np.array([CLASSES.index(name) for name in config.classes])
    label = names[event % len(names)]
    primaries = _draw_primaries(rng, label, config, box)
    cosmics, cosmic_counts = _draw_cosmic_muons(rng, config, box)
    transport = Transport(rng, World(np.full(3, -MARGIN), box + MARGIN), EVENTS_PER_BLOCK)
    deposits = transport.run(p.join([primaries, cosmics]))
    inside = ((deposits.place > 0) & (deposits.place < box)).all(axis=1)
    order = np.flatnonzero(inside)[np.argsort(deposits.event[inside], kind="stable")]
    ends = np.searchsorted(deposits.event[order], np.arange(EVENTS_PER_BLOCK + 1))
    rows = []
    for place in range(EVENTS_PER_BLOCK):
        event_deposits = order[ends[place] : ends[place + 1]]
        charge = readout.electrons(deposits.energy[event_deposits], deposits.length[event_deposits])
        image = readout.image(rng, deposits.place[event_deposits], charge, size)
        rows.append(
            {
                EVENT: event[place],
                LABEL: label[place],
                "pdg": p.PDG[primaries.kind[place]],
                ENERGY: primaries.energy[place] / 1000,
                "visible": deposits.energy[event_deposits].sum() / 1000,
                VERTEX: primaries.place[place, [2, 0]] / (readout.pitch, readout.step),
                "history": transport.history[place],
                "cosmics": cosmic_counts[place],
                INDEX: image.place,
                CHARGE: image.charge,
            }
        )
    return rows


def _draw_primaries(rng: Random, label: Ints, config: LArTPCGeneratorConfig, box: Floats) -> ParticleStack:
    size = len(label)
    kind = np.array(KINDS_OF_CLASS)[label, rng.integers(0, 2, size)]
    energy = 1000 * rng.uniform(*config.energy, size)
    low = np.array([config.depth[0], 0.25, config.start[0]]) * box
    high = np.array([config.depth[1], 0.75, config.start[1]]) * box
    cosine = rng.uniform(np.cos(np.radians(config.opening)), 1, size)
    direction = p.polar_direction(cosine, rng.uniform(0, 2 * np.pi, size))
    return ParticleStack(np.arange(size), kind, energy, rng.uniform(low, high, (size, 3)), direction)


def _draw_cosmic_muons(rng: Random, config: LArTPCGeneratorConfig, box: Floats) -> tuple[ParticleStack, Ints]:
    """Draw muons through the upper face, with a cosine-squared distribution, at any time and so at any drift."""
    counts = rng.poisson(config.cosmics, EVENTS_PER_BLOCK)
    event = np.repeat(np.arange(EVENTS_PER_BLOCK), counts)
    size = len(event)
    cosine = rng.random(size) ** (1 / 3)
    local = p.polar_direction(cosine, rng.uniform(0, 2 * np.pi, size))
    scale, power = COSMIC_ENERGY
    energy = np.minimum(scale * (rng.random(size) ** (-1 / (power - 1)) - 0.8), 19_000.0)
    kind = np.where(rng.random(size) < 0.44, p.MUON, p.ANTIMUON)
    place = np.stack([rng.uniform(0, box[0], size), np.full(size, box[1]), rng.uniform(0, box[2], size)], axis=1)
    direction = np.stack([local[:, 0], -local[:, 2], local[:, 1]], axis=1)
    return ParticleStack(event, kind, energy, place, direction), counts


_COLUMN_TYPES = {EVENT: np.int64, LABEL: np.int64, "pdg": np.int32, "history": np.int32, "cosmics": np.int32}


def _events_table(rows: list[dict[str, Any]], size: tuple[int, int]) -> Table:
    index = Ragged.from_lists([row[INDEX] for row in rows], dtype=np.int32)
    charge = index.share(np.concatenate([row[CHARGE] for row in rows]))
    fixed = {
        name: np.array([row[name] for row in rows], dtype=_COLUMN_TYPES.get(name, np.float32))
        for name in (EVENT, LABEL, "pdg", ENERGY, "visible", VERTEX, "history", "cosmics")
    }
    shape = np.tile(np.array(size, dtype=np.int32), (len(rows), 1))
    version = np.full(len(rows), VERSION, dtype=np.int32)
    units = {ENERGY: "GeV", "visible": "GeV", CHARGE: "ke"}
    return Table({**fixed, "generator": version, SHAPE: shape, INDEX: index, CHARGE: charge}, units=units)
