"""Events: primary particles, their passage, their images; written to files."""

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
from clew.recipes.lartpc.generate.config import Generator
from clew.recipes.lartpc.generate.particles import Floats, Ints, Stack
from clew.recipes.lartpc.generate.transport import Transport, World
from clew.recipes.lartpc.readout import Readout

VERSION = 2
"""Raised with every change that moves an event."""
BLOCK = 16
"""Events that share one random stream."""
EVENTS_A_FILE = 256
KINDS = (
    (p.GAMMA, p.GAMMA),
    (p.ELECTRON, p.POSITRON),
    (p.MUON, p.ANTIMUON),
    (p.PION_MINUS, p.PION_PLUS),
    (p.KAON_MINUS, p.KAON_PLUS),
)
"""Of each of CLASSES, negative and positive."""
MARGIN = 100.0
"""cm around what is read out in which particles are still followed: they may come back."""
COSMIC_ENERGY = (2000.0, 2.7)
"""MeV and power: the fall of the energies of muons at the surface, above the scale."""


def write(
    events: int,
    seed: int,
    folder: Path,
    *,
    first: int = 0,
    config: Generator | None = None,
    readout: Readout | None = None,
    size: tuple[int, int] = SIZE,
) -> Iterator[tuple[Path, int]]:
    """Write synthetic events under `folder`, EVENTS_A_FILE a file; yield each file and its events.

    Raises:
        ConfigError: a negative number, or a beginning in the middle of a block.
    """
    if min(events, seed, first) < 0 or first % BLOCK:
        raise ConfigError(f"events, seed must be 0 or more, first a multiple of {BLOCK}, got {events}, {seed}, {first}")
    config, readout = config or Generator(), readout or Readout()
    folder.mkdir(parents=True, exist_ok=True)
    for start in range(first, first + events, EVENTS_A_FILE):
        count = min(EVENTS_A_FILE, first + events - start)
        name = f"synthetic-lartpc-v{VERSION}-{config.label}-{size[0]}x{size[1]}-seed{seed}-{start // BLOCK:06d}.h5"
        simulate(count, seed, start, config=config, readout=readout, size=size).save(folder / name)
        yield folder / name, count


def simulate(
    events: int,
    seed: int,
    first: int = 0,
    *,
    config: Generator | None = None,
    readout: Readout | None = None,
    size: tuple[int, int] = SIZE,
) -> Table:
    """Events `first` to `first + events - 1` of the endless sample that seed and settings name.

    Columns beside those of `columns`: `pdg`, `visible` (GeV left
    where it is read out, cosmic muons included), `history` (bits of `transport.HISTORY`), `cosmics` (muons laid over),
    `generator` (VERSION).
    """
    config, readout = config or Generator(), readout or Readout()
    rows: list[dict[str, Any]] = []
    for block in range(first // BLOCK, (first + max(events, 1) - 1) // BLOCK + 1):
        rows += _block(block, np.random.default_rng([seed, block]), config, readout, size)
    skipped = first % BLOCK
    return _table(rows[skipped : skipped + events], size)


def _block(
    number: int, rng: Random, config: Generator, readout: Readout, size: tuple[int, int]
) -> list[dict[str, Any]]:
    box = np.array([size[1] * readout.step, config.height, size[0] * readout.pitch])
    event = number * BLOCK + np.arange(BLOCK)
    names = np.array([CLASSES.index(name) for name in config.classes])
    label = names[event % len(names)]
    primaries = _primaries(rng, label, config, box)
    cosmics, many = _cosmics(rng, config, box)
    transport = Transport(rng, World(np.full(3, -MARGIN), box + MARGIN), BLOCK)
    deposits = transport.run(p.join([primaries, cosmics]))
    inside = ((deposits.place > 0) & (deposits.place < box)).all(axis=1)
    order = np.flatnonzero(inside)[np.argsort(deposits.event[inside], kind="stable")]
    ends = np.searchsorted(deposits.event[order], np.arange(BLOCK + 1))
    rows = []
    for place in range(BLOCK):
        own = order[ends[place] : ends[place + 1]]
        charge = readout.electrons(deposits.energy[own], deposits.length[own])
        image = readout.image(rng, deposits.place[own], charge, size)
        rows.append(
            {
                EVENT: event[place],
                LABEL: label[place],
                "pdg": p.PDG[primaries.kind[place]],
                ENERGY: primaries.energy[place] / 1000,
                "visible": deposits.energy[own].sum() / 1000,
                VERTEX: primaries.place[place, [2, 0]] / (readout.pitch, readout.step),
                "history": transport.history[place],
                "cosmics": many[place],
                INDEX: image.place,
                CHARGE: image.charge,
            }
        )
    return rows


def _primaries(rng: Random, label: Ints, config: Generator, box: Floats) -> Stack:
    size = len(label)
    kind = np.array(KINDS)[label, rng.integers(0, 2, size)]
    energy = 1000 * rng.uniform(*config.energy, size)
    low = np.array([config.depth[0], 0.25, config.start[0]]) * box
    high = np.array([config.depth[1], 0.75, config.start[1]]) * box
    cosine = rng.uniform(np.cos(np.radians(config.opening)), 1, size)
    direction = p.polar(cosine, rng.uniform(0, 2 * np.pi, size))
    return Stack(np.arange(size), kind, energy, rng.uniform(low, high, (size, 3)), direction)


def _cosmics(rng: Random, config: Generator, box: Floats) -> tuple[Stack, Ints]:
    """Muons through the upper face, by the square of the cosine; they come at any time, so at any drift."""
    many = rng.poisson(config.cosmics, BLOCK)
    event = np.repeat(np.arange(BLOCK), many)
    size = len(event)
    cosine = rng.random(size) ** (1 / 3)
    local = p.polar(cosine, rng.uniform(0, 2 * np.pi, size))
    scale, power = COSMIC_ENERGY
    energy = np.minimum(scale * (rng.random(size) ** (-1 / (power - 1)) - 0.8), 19_000.0)
    kind = np.where(rng.random(size) < 0.44, p.MUON, p.ANTIMUON)
    place = np.stack([rng.uniform(0, box[0], size), np.full(size, box[1]), rng.uniform(0, box[2], size)], axis=1)
    direction = np.stack([local[:, 0], -local[:, 2], local[:, 1]], axis=1)
    return Stack(event, kind, energy, place, direction), many


_TYPES = {EVENT: np.int64, LABEL: np.int64, "pdg": np.int32, "history": np.int32, "cosmics": np.int32}


def _table(rows: list[dict[str, Any]], size: tuple[int, int]) -> Table:
    index = Ragged.from_lists([row[INDEX] for row in rows], dtype=np.int32)
    charge = index.share(np.concatenate([row[CHARGE] for row in rows]))
    fixed = {
        name: np.array([row[name] for row in rows], dtype=_TYPES.get(name, np.float32))
        for name in (EVENT, LABEL, "pdg", ENERGY, "visible", VERTEX, "history", "cosmics")
    }
    shape = np.tile(np.array(size, dtype=np.int32), (len(rows), 1))
    version = np.full(len(rows), VERSION, dtype=np.int32)
    units = {ENERGY: "GeV", "visible": "GeV", CHARGE: "ke"}
    return Table({**fixed, "generator": version, SHAPE: shape, INDEX: index, CHARGE: charge}, units=units)
