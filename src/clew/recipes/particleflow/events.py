"""Synthetic events: Pythia's collisions with pile-up in a parametric detector, or without Pythia by numbers alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import h5py
import numpy as np
from pydantic import Field

from clew import Ragged, Section, Table
from clew.errors import ConfigError
from clew.recipes.particleflow import collisions, parametric, pool
from clew.recipes.particleflow.columns import ELEMENTS, GEN_MET, PROCESS, PROCESSES, TARGETS
from clew.recipes.particleflow.detector import Detector, Seen, observe
from clew.recipes.particleflow.pool import SPREAD, PoolSettings
from clew.recipes.particleflow.truth import Particles

EVENTS_A_FILE = 100


class Generator(Section):
    """What `clew data generate` makes."""

    kind: Literal["pythia", "parametric"] = "pythia"
    """`parametric` needs no Pythia: numbers and spectra of elements about right, and no physics."""
    process: Literal["ttbar", "qcd"] = "ttbar"
    """Of `pythia`."""
    energy: Annotated[float, Field(ge=1000)] = 14_000.0
    """Of the collision of two protons, GeV."""
    qcd_pt: Annotated[float, Field(gt=0)] = 50.0
    """Least transverse momentum of the hard scattering in `qcd`, GeV."""
    pileup: Annotated[float, Field(ge=0)] = 200.0
    """Mean number of other collisions in an event; the number is Poisson's."""
    pool: PoolSettings = PoolSettings()
    detector: Detector = Detector()

    @property
    def label(self) -> str:
        """For the names of files."""
        return f"{self.made}-pu{self.pileup:g}"

    @property
    def made(self) -> str:
        """What events are: one of PROCESSES."""
        return self.process if self.kind == "pythia" else self.kind


def write(
    events: int, seed: int, folder: Path, *, first: int = 0, config: Generator | None = None
) -> Iterator[tuple[Path, int]]:
    """Write synthetic events under `folder`, EVENTS_A_FILE a file; yield each file and its events.

    A file has a Pythia of its own, an event a random stream of its own: events do not depend on who makes them.

    Raises:
        RecipeError: Pythia is wanted and not installed.
        ConfigError: a negative number, or a beginning in the middle of a file.
    """
    config = config or Generator()
    if min(events, seed, first) < 0 or first % EVENTS_A_FILE:
        what = f"events, seed must be 0 or more, first a multiple of {EVENTS_A_FILE}"
        raise ConfigError(f"{what}, got {events}, {seed}, {first}")
    if config.kind == "pythia":
        collisions.load()
    folder.mkdir(parents=True, exist_ok=True)
    for start in range(first, first + events, EVENTS_A_FILE):
        count = min(EVENTS_A_FILE, first + events - start)
        path = folder / f"synthetic-{config.label}-seed{seed}-{start // EVENTS_A_FILE:05d}.h5"
        make(count, seed, start // EVENTS_A_FILE, config).save(path)
        _note(path, config)
        yield path, count


def make(count: int, seed: int, file: int, config: Generator) -> Table:
    """The first events of a file."""
    source = _hard(count, seed, file, config) if config.kind == "pythia" else None
    made = [_event(source, seed, file, place, config) for place in range(count)]
    met, seen = zip(*made, strict=True)
    return table(seen, met, file * EVENTS_A_FILE, config.made)


def _event(source: Table | None, seed: int, file: int, place: int, config: Generator) -> tuple[float, Seen]:
    """Its missing momentum, and what is seen of it."""
    random = stream(seed, file * EVENTS_A_FILE + place, config.made)
    if source is None:
        own, met = parametric.particles(config.pileup, random), parametric.missing(random)
        return met, observe(own, np.zeros(len(own.pt)), config.detector, random)
    particles, along = _overlaid(pool.particles(source.slice(place, place + 1)), config, random)
    return float(source.fixed(GEN_MET)[place]), observe(particles, along, config.detector, random)


def stream(seed: int, event: int, process: str) -> np.random.Generator:
    """The random numbers of one event."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, event, PROCESSES.index(process)])))


def table(seen: Sequence[Seen], met: Sequence[float], first: int, process: str) -> Table:
    """Events as a table."""
    like = Ragged.from_lengths(np.concatenate([each.elements for each in seen]), [len(each.elements) for each in seen])
    columns: dict[str, Any] = {
        "event": np.arange(first, first + len(seen)),
        PROCESS: np.full(len(seen), PROCESSES.index(process), dtype=np.int8),
        GEN_MET: np.array(met, dtype=np.float32),
        ELEMENTS: like,
        TARGETS: like.share(np.concatenate([each.targets for each in seen])),
    }
    return Table(columns, units={GEN_MET: "GeV"})


def _hard(count: int, seed: int, file: int, config: Generator) -> Table:
    number = PROCESSES.index(config.process)
    own = int(np.random.SeedSequence([seed, file, number]).generate_state(1)[0]) % 900_000_000
    more = {"PhaseSpace:pTHatMin": config.qcd_pt} if config.process == "qcd" else {}
    return collisions.Started(config.process, own + 1, energy=config.energy, settings=more).collisions(count)


def _overlaid(hard: Particles, config: Generator, random: np.random.Generator) -> tuple[Particles, Any]:
    """All particles of an event, and where along the beam each comes from."""
    at = np.full(len(hard.pt), SPREAD * random.standard_normal(), dtype=np.float32)
    many = int(random.poisson(config.pileup))
    if not many:
        return hard, at
    others, places = pool.opened(config.pool, config.energy).draw(many, random)
    both = Particles(*(np.concatenate(pair) for pair in zip(hard, others, strict=True)))
    return both, np.concatenate([at, places])


def _note(path: Path, config: Generator) -> None:
    """Say in the file what its events are."""
    what = parametric.NOTE if config.kind == "parametric" else f"Pythia {collisions.version()}, parametric detector"
    with h5py.File(path, "r+") as file:
        file.attrs["made"] = what
        file.attrs["generator"] = config.model_dump_json()
