"""The ACTS chain that simulates events: its detector, its event loop, its input and output.

pyacts is imported by `load_acts` only, so clew works without it.
"""

from __future__ import annotations

import functools
import importlib
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clew.errors import RecipeError
from clew.recipes.tracking.particle_gun import GunParticles

FIELD = 2.0  # tesla
MOMENTUM_MIN = 0.1  # GeV; a particle below this momentum is stopped

# Spread (mm) of a hit along the two axes of its module, by volume: pitch / sqrt(12) of 50 x 50 um pixels, 80 um x
# 1.2 mm short strips and 120 um x 10.8 mm long strips, the sizes of the TrackML detector.
_PITCHES = {(7, 8, 9): (0.050, 0.050), (12, 13, 14): (0.080, 1.2), (16, 17, 18): (0.120, 10.8)}
RESOLUTION = {volume: (a / 12**0.5, b / 12**0.5) for volumes, (a, b) in _PITCHES.items() for volume in volumes}

_HIT = {"x": "x", "y": "y", "z": "z", "true_x": "tx", "true_y": "ty", "true_z": "tz"}
_PLACE = {"volume_id": "volume_id", "layer_id": "layer_id", "surface_id": "module_id"}
_PARTICLE = ("vx", "vy", "vz", "px", "py", "pz")

Arrays = dict[str, NDArray[Any]]


class ActsDetector(NamedTuple):
    """The detector of all events. `surfaces` are the sensitive modules by their GeometryIdentifier."""

    built: Any  # owns the geometry
    geometry: Any
    field: Any
    surfaces: Any


def load_acts() -> Any:
    """The module `acts`, with its examples.

    Raises:
        RecipeError: pyacts is not installed, or a part of it is missing.
    """
    try:
        for part in ("examples", "examples.json", "examples.arrow"):
            importlib.import_module(f"acts.{part}")
    except ImportError as error:
        raise RecipeError(f"ACTS events need pyacts ({error}): pip install 'clew[hep]'") from error
    return importlib.import_module("acts")


@functools.cache
def generic_detector() -> ActsDetector:
    """The GenericDetector in its field. It is built once per process, which takes half a second."""
    acts = load_acts()
    log_levels = dict.fromkeys(("logLevel", "surfaceLogLevel", "layerLogLevel", "volumeLogLevel"), acts.logging.WARNING)
    built = acts.examples.GenericDetector(**log_levels)
    geometry = built.trackingGeometry()
    field = acts.ConstantBField(acts.Vector3(0, 0, FIELD * acts.UnitConstants.T))
    surfaces = {place: surface for place, surface in geometry.geoIdSurfaceMap().items() if place.sensitive}
    return ActsDetector(built, geometry, field, surfaces)


def sequencer(events: int, first: int = 0) -> Any:
    """The event loop of ACTS over a range of event numbers, in this thread and without log output."""
    acts = load_acts()
    return acts.examples.Sequencer(
        events=events, skip=first, numThreads=1, logLevel=acts.logging.WARNING, trackFpes=False
    )


def simulate_events(events: int, first: int, seed: int, make: Callable[[int], GunParticles]) -> list[Arrays]:
    """Simulate a range of events.

    Args:
        events: Number of events.
        first: Number of the first event.
        seed: Seed of the simulation.
        make: Returns the particles of an event, given its number.

    Returns:
        One dictionary per event, with the arrays of hits and of particles.
    """
    acts, arrays = load_acts(), list[Arrays]()
    sequence = sequencer(events, first)
    sequence.addReader(_particle_reader(acts, make))
    for algorithm in (*_simulation(acts, seed), *_tables(acts), _event_collector(acts, arrays)):
        sequence.addAlgorithm(algorithm)
    sequence.run()
    return arrays


def _particle_reader(acts: Any, make: Callable[[int], GunParticles]) -> Any:
    """A reader for ACTS that provides the particles of each event."""
    examples = acts.examples

    class Gun(examples.IReader):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__("gun", acts.logging.WARNING)
            self.output = examples.WriteDataHandle(self, examples.SimParticleContainer, "output")
            self.output.initialize("particles_generated")

        def availableEvents(self) -> tuple[int, int]:  # noqa: N802
            return 0, 2**62

        def read(self, context: Any) -> Any:
            self.output(context, _sim_particles(acts, make(context.eventNumber)))
            return examples.ProcessCode.SUCCESS

    return Gun()


def _sim_particles(acts: Any, particles: GunParticles) -> Any:
    container, size = acts.examples.SimParticleContainer(), np.linalg.norm(particles.momentum, axis=1)
    rows = zip(particles.pdg, particles.position, particles.momentum / size[:, None], size, strict=True)
    for number, (pdg, position, direction, momentum) in enumerate(rows):
        code = acts.examples.SimBarcode()
        code.vertexPrimary, code.particle = 1, number + 1
        particle = acts.examples.SimParticle(code, acts.PdgParticle(int(pdg)))
        particle.fourPosition = acts.Vector4(*position, 0.0)
        particle.direction = acts.Vector3(*direction)
        particle.absoluteMomentum = momentum
        container.insert(particle)
    return container


def _simulation(acts: Any, seed: int) -> tuple[Any, ...]:
    """Fatras and digitisation."""
    # ACTS adds the seed to a small number made from the event number, so neighbouring seeds would share events
    spread = int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0] >> np.uint64(1))
    random, examples = acts.examples.RandomNumbers(seed=spread), acts.examples
    level = acts.logging.FATAL  # no messages about the rare particle or hit that is dropped
    fatras = examples.FatrasSimulation(
        level=level,
        inputParticles="particles_generated",
        outputParticles="particles_simulated",
        outputSimHits="simhits",
        randomNumbers=random,
        trackingGeometry=generic_detector().geometry,
        magneticField=generic_detector().field,
        pMin=MOMENTUM_MIN,
        emScattering=True,
        emEnergyLossIonisation=True,
        emEnergyLossRadiation=True,
        emPhotonConversion=True,
        generateHitsOnSensitive=True,
    )
    digitisation = examples.DigitizationAlgorithm(
        level=level,
        digitizationConfigs=_smearing(acts),
        surfaceByIdentifier=generic_detector().surfaces,
        randomNumbers=random,
        inputSimHits="simhits",
        outputMeasurements="measurements",
        outputMeasurementParticlesMap="measurement_particles_map",
        outputMeasurementSimHitsMap="measurement_simhits_map",
        outputParticleMeasurementsMap="particle_measurements_map",
        outputSimHitMeasurementsMap="simhit_measurements_map",
    )
    return fatras, digitisation


def _smearing(acts: Any) -> Any:
    """RESOLUTION in the form of ACTS, which can only be read from a file."""
    entries = [
        {"volume": volume, "value": {"smearing": [_gauss(axis, sigma) for axis, sigma in enumerate(sigmas)]}}
        for volume, sigmas in RESOLUTION.items()
    ]
    head = {"format-version": 0, "value-identifier": "digitization-configuration"}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "smearing.json"
        path.write_text(json.dumps({"acts-geometry-hierarchy-map": head, "entries": entries}))
        return acts.examples.json.readDigiConfigFromJson(str(path))


def _gauss(axis: int, sigma: float) -> dict[str, Any]:
    return {"index": axis, "type": "Gauss", "mean": 0.0, "stddev": sigma}


def _tables(acts: Any) -> tuple[Any, ...]:
    """Converters of hits and particles to Arrow tables. A Python loop over hits would take longer than the
    simulation."""
    examples, level = acts.examples, acts.logging.WARNING
    hits = examples.arrow.ArrowSimHitOutputConverter(
        level=level,
        inputSimHits="simhits",
        inputParticles="particles_simulated",
        inputClusters="clusters",
        inputSimHitMeasurementsMap="simhit_measurements_map",
        outputTable="hits_table",
        detectorResolver=lambda _: 0,
    )
    particles = examples.arrow.ArrowParticleOutputConverter(
        level=level, inputParticles="particles_simulated", outputTable="particles_table"
    )
    return hits, particles


def _event_collector(acts: Any, arrays: list[Arrays]) -> Any:
    """An algorithm for ACTS that appends the arrays of each event to `arrays`."""
    examples, table = acts.examples, importlib.import_module("acts.arrow").ArrowTable

    class EventCollector(examples.IAlgorithm):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__("collector", acts.logging.WARNING)
            kinds = {"hits_table": table, "particles_table": table, "simhits": examples.SimHitContainer}
            self.inputs = {key: examples.ReadDataHandle(self, kind, key) for key, kind in kinds.items()}
            for key, handle in self.inputs.items():
                handle.initialize(key)

        def execute(self, context: Any) -> Any:
            hits, particles, crossings = (handle(context.eventStore) for handle in self.inputs.values())
            arrays.append({**_hits(hits.as_table(), crossings), **_particles(particles.as_table())})
            return examples.ProcessCode.SUCCESS

    return EventCollector()


def _hits(table: Any, crossings: Any) -> Arrays:
    momenta = [crossing.momentum4Before for crossing in crossings]
    along = np.array([(p[0], p[1], p[2]) for p in momenta], dtype=np.float32).reshape(-1, 3)
    hits = {
        **{ours: _flat(table, acts_name, np.float32) for acts_name, ours in _HIT.items()},
        **{ours: _flat(table, acts_name, np.int32) for acts_name, ours in _PLACE.items()},
        "track": _flat(table, "particle_id", np.int64) + 1,  # 0 is noise in TrackML's files
        **dict(zip(("tpx", "tpy", "tpz"), along.T, strict=True)),
    }
    measured = np.isfinite(
        hits["x"]
    )  # ACTS drops about one hit in 500,000, which is smeared outside its module every time
    return {name: values[measured] for name, values in hits.items()}


def _particles(table: Any) -> Arrays:
    return {
        "particle_id": _flat(table, "particle_id", np.int64) + 1,
        **{name: _flat(table, name, np.float32) for name in _PARTICLE},
        "q": _flat(table, "charge", np.int32),
        "pdg": _flat(table, "pdg_id", np.int32),
    }


def _flat(table: Any, name: str, dtype: Any) -> NDArray[Any]:
    return np.asarray(table[name].combine_chunks().flatten().to_numpy(zero_copy_only=False)).astype(dtype)
