"""Files of generated showers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator as Random
from numpy.typing import NDArray

from clew import Table
from clew.errors import ConfigError
from clew.recipes.fastsim.columns import ENERGY, EVENT, PHI, THETA, VOXELS
from clew.recipes.fastsim.generate import geant4, materials, parametric
from clew.recipes.fastsim.generate.config import ShowerGeneratorConfig
from clew.recipes.fastsim.geometry import CylinderLayer, Geometry, GeometryConfig
from clew.recipes.fastsim.shower_files import count_showers, write_showers

Array = NDArray[Any]
Generated = tuple[ShowerGeneratorConfig, Geometry]
VERSION = 1
"""Increased with every change that changes a shower."""
SHOWERS_PER_BLOCK = 64
"""Showers that share one random stream."""
SHOWERS_PER_FILE = 256


def write_generated(
    showers: int, seed: int, folder: Path, *, first: int, config: ShowerGeneratorConfig, geometry: GeometryConfig
) -> Iterator[tuple[Path, int]]:
    """Write showers to files of SHOWERS_PER_FILE in the layout of the CaloChallenge. Complete files are not made again.

    Args:
        showers: Number of showers.
        seed: Seed of the sample.
        folder: Folder of the files.
        first: Number of the first shower, a multiple of SHOWERS_PER_BLOCK.
        config: What to generate.
        geometry: The calorimeter.

    Yields:
        Each file and its number of showers.

    Raises:
        ConfigError: An argument is negative, `first` is not the start of a block, or the generator does not have this
            geometry.
    """
    if min(showers, seed, first) < 0 or first % SHOWERS_PER_BLOCK:
        raise ConfigError(
            f"events, seed must be 0 or more, first a multiple of {SHOWERS_PER_BLOCK}, got {showers}, {seed}, {first}"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for start in range(first, first + showers, SHOWERS_PER_FILE):
        count = min(SHOWERS_PER_FILE, first + showers - start)
        block = start // SHOWERS_PER_BLOCK
        name = f"synthetic-showers-v{VERSION}-{config.label}-{geometry.kind}-seed{seed}-{block:06d}.h5"
        if count_showers(folder / name) == count:
            yield folder / name, count
            continue
        table = make_table(count, seed, start, config=config, geometry=geometry)
        facts = {
            "generator": config.kind,
            "particle": config.particle,
            "pairs": config.pairs,
            "version": VERSION,
            "seed": seed,
            "first": start,
        }
        write_showers(folder / name, table, facts)
        yield folder / name, count


def make_table(
    showers: int, seed: int, first: int = 0, *, config: ShowerGeneratorConfig, geometry: GeometryConfig
) -> Table:
    """Return showers `first` to `first + showers - 1` of the sample of a seed. They do not depend on the range.

    Raises:
        ConfigError: The generator does not have this geometry.
    """
    calorimeter = check_geometry(geometry)
    blocks = range(first // SHOWERS_PER_BLOCK, (first + max(showers, 1) - 1) // SHOWERS_PER_BLOCK + 1)
    chosen = slice(first % SHOWERS_PER_BLOCK, first % SHOWERS_PER_BLOCK + showers)
    make = _simulated if config.kind == "geant4" else _parametrised
    columns = make(blocks, chosen, seed, (config, calorimeter))
    names = (EVENT, ENERGY, VOXELS, *((THETA, PHI) if config.theta != (0.0, 0.0) else ()))
    units = {ENERGY: "MeV", VOXELS: "MeV", THETA: "rad", PHI: "rad"}
    return Table(
        {name: columns[name] for name in names}, units={name: unit for name, unit in units.items() if name in names}
    )


def check_geometry(geometry: GeometryConfig) -> Geometry:
    """Return the geometry if the generator has it.

    Raises:
        ConfigError: The layers are not those of tungsten and silicon.
    """
    calorimeter = geometry.load()
    equal = calorimeter.shape is not None and isinstance(calorimeter.layers[0], CylinderLayer)
    if not equal or len(calorimeter.layers) != materials.LAYERS:
        raise ConfigError(
            f"the generator has {materials.LAYERS} equal layers of rings and angles, not {calorimeter.name}; "
            "set geometry.kind to dataset2 or dataset3"
        )
    return calorimeter


def _draw_particles(block: int, seed: int, config: ShowerGeneratorConfig) -> tuple[parametric.Particles, Random]:
    """Return the particles of a block, and the random stream of their showers."""
    random = np.random.default_rng([seed, block])
    low, high = config.energy
    energy = (1000 * low * (high / low) ** random.random(SHOWERS_PER_BLOCK)).astype(np.float32)
    theta = np.radians(random.uniform(*config.theta, SHOWERS_PER_BLOCK))
    phi = random.uniform(0, 2 * np.pi, SHOWERS_PER_BLOCK)
    return parametric.Particles(energy.astype(np.float64), theta, phi), random


def _parametrised(blocks: range, chosen: slice, seed: int, what: Generated) -> dict[str, Array]:
    config, geometry = what
    drawn = [_draw_particles(block, seed, config) for block in blocks]
    showers = [parametric.make_showers(config.particle, particles, geometry, random) for particles, random in drawn]
    return _columns(blocks, chosen, [particles for particles, _ in drawn], np.concatenate(showers)[chosen])


def _simulated(blocks: range, chosen: slice, seed: int, what: Generated) -> dict[str, Array]:
    config, geometry = what
    drawn = [_draw_particles(block, seed, config)[0] for block in blocks]
    particles = parametric.Particles(*(np.concatenate(each)[chosen] for each in zip(*drawn, strict=True)))
    numbers = _numbers(blocks)[chosen].tolist()
    seeds = [int(np.random.SeedSequence([seed, number]).generate_state(1)[0] >> 1) for number in numbers]
    showers = geant4.make_showers(config.particle, particles, np.array(seeds), geometry, config.pairs)
    return _columns(blocks, chosen, drawn, showers)


def _numbers(blocks: range) -> NDArray[np.int64]:
    return np.arange(blocks.start * SHOWERS_PER_BLOCK, blocks.stop * SHOWERS_PER_BLOCK)


def _columns(
    blocks: range, chosen: slice, drawn: Sequence[parametric.Particles], voxels: parametric.Floats
) -> dict[str, Array]:
    energy, theta, phi = (np.concatenate(each)[chosen].astype(np.float32) for each in zip(*drawn, strict=True))
    return {
        EVENT: _numbers(blocks)[chosen],
        ENERGY: energy,
        VOXELS: voxels.astype(np.float32),
        THETA: theta,
        PHI: phi,
    }
