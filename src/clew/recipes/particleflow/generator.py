"""Synthetic events: Pythia collisions with pile-up in a parametric detector, or parametric events without Pythia."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import h5py
import numpy as np
from pydantic import Field

from clew import Ragged, Section, Table
from clew.errors import ConfigError
from clew.recipes.particleflow import parametric, pythia
from clew.recipes.particleflow.columns import ELEMENTS, GEN_MET, PROCESS, PROCESSES, TARGETS
from clew.recipes.particleflow.detector import DetectorEvent, ParticleFlowDetectorConfig, simulate_detector
from clew.recipes.particleflow.pileup import BEAM_SPREAD, PileupPoolConfig, load_pool, particles_from_table
from clew.recipes.particleflow.targets import VisibleParticles

EVENTS_PER_FILE = 100


class ParticleFlowGeneratorConfig(Section):
    """Which events `clew data generate particleflow` makes."""

    kind: Literal["pythia", "parametric"] = "pythia"
    """`parametric` needs no Pythia: the numbers and spectra of elements are realistic, the physics is not."""
    process: Literal["ttbar", "qcd"] = "ttbar"
    """The hard process, for `pythia`."""
    energy: Annotated[float, Field(ge=1000)] = 14_000.0
    """Energy of the proton-proton collision, GeV."""
    qcd_pt: Annotated[float, Field(gt=0)] = 50.0
    """Minimum transverse momentum of the hard scattering in `qcd`, GeV."""
    pileup: Annotated[float, Field(ge=0)] = 200.0
    """Mean number of pile-up collisions per event. The number follows a Poisson distribution."""
    pool: PileupPoolConfig = PileupPoolConfig()
    detector: ParticleFlowDetectorConfig = ParticleFlowDetectorConfig()

    @property
    def label(self) -> str:
        """The part of file names that describes the events."""
        return f"{self.process_name}-pu{self.pileup:g}"

    @property
    def process_name(self) -> str:
        """The process of the events: one of PROCESSES."""
        return self.process if self.kind == "pythia" else self.kind


def write_events(
    events: int, seed: int, folder: Path, *, first: int = 0, config: ParticleFlowGeneratorConfig | None = None
) -> Iterator[tuple[Path, int]]:
    """Write synthetic events to files of EVENTS_PER_FILE events.

    Each file has its own Pythia, and each event its own random stream, so events do not depend on the process that
    makes them.

    Args:
        events: Number of events.
        seed: Seed of the sample.
        folder: Folder of the files.
        first: Number of the first event, a multiple of EVENTS_PER_FILE.
        config: What to generate.

    Yields:
        Each file and its number of events.

    Raises:
        RecipeError: The settings need Pythia, which is not installed.
        ConfigError: An argument is negative, or `first` is not the start of a file.
    """
    config = config or ParticleFlowGeneratorConfig()
    if min(events, seed, first) < 0 or first % EVENTS_PER_FILE:
        what = f"events, seed must be 0 or more, first a multiple of {EVENTS_PER_FILE}"
        raise ConfigError(f"{what}, got {events}, {seed}, {first}")
    if config.kind == "pythia":
        pythia.load_pythia()
    folder.mkdir(parents=True, exist_ok=True)
    for start in range(first, first + events, EVENTS_PER_FILE):
        count = min(EVENTS_PER_FILE, first + events - start)
        path = folder / f"synthetic-{config.label}-seed{seed}-{start // EVENTS_PER_FILE:05d}.h5"
        make_events(count, seed, start // EVENTS_PER_FILE, config).save(path)
        _write_attributes(path, config)
        yield path, count


def make_events(count: int, seed: int, file: int, config: ParticleFlowGeneratorConfig) -> Table:
    """Return the first `count` events of file number `file`."""
    source = _hard_collisions(count, seed, file, config) if config.kind == "pythia" else None
    events = [_make_event(source, seed, file, place, config) for place in range(count)]
    met, detected = zip(*events, strict=True)
    return events_table(detected, met, file * EVENTS_PER_FILE, config.process_name)


def _make_event(
    source: Table | None, seed: int, file: int, place: int, config: ParticleFlowGeneratorConfig
) -> tuple[float, DetectorEvent]:
    """Return the true missing pT of an event, and its elements and targets."""
    random = random_stream(seed, file * EVENTS_PER_FILE + place, config.process_name)
    if source is None:
        particles, met = parametric.make_particles(config.pileup, random), parametric.missing_pt(random)
        return met, simulate_detector(particles, np.zeros(len(particles.pt)), config.detector, random)
    particles, along = _overlay_pileup(particles_from_table(source.slice(place, place + 1)), config, random)
    return float(source.fixed(GEN_MET)[place]), simulate_detector(particles, along, config.detector, random)


def random_stream(seed: int, event: int, process: str) -> np.random.Generator:
    """Return the random number generator of one event."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, event, PROCESSES.index(process)])))


def events_table(detected: Sequence[DetectorEvent], met: Sequence[float], first: int, process: str) -> Table:
    """Return events as a table; `met` is the true missing pT of each event, `first` the number of the first event."""
    like = Ragged.from_lengths(
        np.concatenate([each.elements for each in detected]), [len(each.elements) for each in detected]
    )
    columns: dict[str, Any] = {
        "event": np.arange(first, first + len(detected)),
        PROCESS: np.full(len(detected), PROCESSES.index(process), dtype=np.int8),
        GEN_MET: np.array(met, dtype=np.float32),
        ELEMENTS: like,
        TARGETS: like.share(np.concatenate([each.targets for each in detected])),
    }
    return Table(columns, units={GEN_MET: "GeV"})


def _hard_collisions(count: int, seed: int, file: int, config: ParticleFlowGeneratorConfig) -> Table:
    number = PROCESSES.index(config.process)
    stream = int(np.random.SeedSequence([seed, file, number]).generate_state(1)[0]) % 900_000_000
    settings = {"PhaseSpace:pTHatMin": config.qcd_pt} if config.process == "qcd" else {}
    return pythia.PythiaGenerator(config.process, stream + 1, energy=config.energy, settings=settings).collisions(count)


def _overlay_pileup(
    hard: VisibleParticles, config: ParticleFlowGeneratorConfig, random: np.random.Generator
) -> tuple[VisibleParticles, Any]:
    """Return all particles of an event, and the position along the beam from which each comes, m."""
    positions = np.full(len(hard.pt), BEAM_SPREAD * random.standard_normal(), dtype=np.float32)
    count = int(random.poisson(config.pileup))
    if not count:
        return hard, positions
    others, pileup_positions = load_pool(config.pool, config.energy).draw_collisions(count, random)
    both = VisibleParticles(*(np.concatenate(pair) for pair in zip(hard, others, strict=True)))
    return both, np.concatenate([positions, pileup_positions])


def _write_attributes(path: Path, config: ParticleFlowGeneratorConfig) -> None:
    """Write the origin of the events to the attributes of the file."""
    what = parametric.NOTE if config.kind == "parametric" else f"Pythia {pythia.pythia_version()}, parametric detector"
    with h5py.File(path, "r+") as file:
        file.attrs["made"] = what
        file.attrs["generator"] = config.model_dump_json()
