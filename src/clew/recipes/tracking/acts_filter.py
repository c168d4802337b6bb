"""The ACTS chain that finds tracks: seeds, then the combinatorial Kalman filter. Input are hits, output lists of hits.

Units are mm and GeV, as in ACTS. The cuts on seeds are wider than the particles of `particle_gun` need. All other
settings are those of the examples of ACTS. SEED_STEP and SEED_VARIANCE_FACTOR were set on 60 events of each kind, seed
1.
"""

from __future__ import annotations

import functools
import time
from typing import Any, NamedTuple

import numpy as np

from clew import Table
from clew.errors import DataError
from clew.recipes.tracking.acts_chain import FIELD, RESOLUTION, generic_detector, load_acts, sequencer
from clew.recipes.tracking.geometry import Floats, Ints

HitLists = list[list[list[int]]]

PIXELS = (7, 8, 9)
SEED_PT = 0.4  # GeV, lowest pT of a seed
SEED_RADIUS = 200.0  # mm, outer radius of the pixels
SEED_STEP = (1.0, 120.0)  # mm between the space points of a seed, along the radius
SEED_Z, SEED_ORIGIN, SEED_IMPACT = 2000.0, 250.0, 3.0  # mm: of space points, of the vertex, across the beam
SEED_SLOPE = 10.02  # cot(theta) at |eta| = 3
SEEDS_PER_POINT, SEED_MATERIAL = 1, 0.1  # seeds per middle point; radiation lengths that a seed passes
SEED_VARIANCE_FACTOR = 10.0  # factor on the variances of a seed's parameters: the pixels alone measure a high pT badly
CHI2_MEASUREMENT, CHI2_OUTLIER, BRANCHES = 15.0, 25.0, 10
HITS_MIN, HOLES_MAX, SHARED_MAX = 6, 3, 3
AMBIGUITIES_MAX = 10_000_000  # tracks that are removed one by one; if there are more, duplicates stay


def find_tracks(events: Table, seeds_per_point: int = SEEDS_PER_POINT) -> tuple[HitLists, float]:
    """Run the chain on a table of events.

    Args:
        events: The events.
        seeds_per_point: Largest number of seeds with the same middle point.

    Returns:
        Per event and track the numbers of its hits in the event, and the CPU seconds from space points to tracks.
    """
    acts, lists, clock = load_acts(), HitLists(), list[float]()
    sequence = sequencer(len(events))
    sequence.addReader(_hit_reader(acts, events))
    for algorithm in (_clock(acts, clock), *_seeding(acts, seeds_per_point), *_finding(acts), _clock(acts, clock)):
        sequence.addAlgorithm(algorithm)
    sequence.addAlgorithm(_track_collector(acts, lists))
    sequence.run()
    return lists, sum(clock[1::2]) - sum(clock[::2])


class Modules(NamedTuple):
    """The modules of the detector: codes in rising order, and for each its id in ACTS, centre (3,) and axes (2, 3)."""

    code: Ints
    place: list[Any]
    centre: Floats
    axes: Floats


@functools.cache
def _modules() -> Modules:
    acts, surfaces = load_acts(), generic_detector().surfaces
    places = sorted(surfaces, key=lambda place: _code(place.volume, place.layer, place.sensitive))
    context, nowhere = acts.GeometryContext.dangerouslyDefaultConstruct(), acts.Vector3(0, 0, 0)
    corners = [acts.Vector2(0, 0), acts.Vector2(1, 0), acts.Vector2(0, 1)]
    points = [surfaces[place].localToGlobal(context, corner, nowhere) for place in places for corner in corners]
    frame = np.array([(point[0], point[1], point[2]) for point in points]).reshape(-1, 3, 3)
    code = np.array([_code(place.volume, place.layer, place.sensitive) for place in places])
    return Modules(code, places, frame[:, 0], frame[:, 1:] - frame[:, :1])


def _code(volume: Any, layer: Any, module: Any) -> Any:
    return (volume * 1000 + layer) * 100_000 + module


def _local(events: Table) -> tuple[Ints, Floats]:
    """The index of the module of every hit, and its position along the two axes of the module in mm, shape (hits,
    2)."""
    modules = _modules()
    volume, layer, module = (
        events.ragged(f"{name}_id").values.astype(np.int64) for name in ("volume", "layer", "module")
    )
    code = _code(volume, layer, module)
    index = np.minimum(np.searchsorted(modules.code, code), len(modules.code) - 1)
    unknown = np.flatnonzero(modules.code[index] != code)
    if len(unknown):
        where = f"volume {volume[unknown[0]]}, layer {layer[unknown[0]]}, module {module[unknown[0]]}"
        raise DataError(f"a hit is on {where}, which ACTS' GenericDetector does not have")
    position = np.stack([events.ragged(name).values for name in "xyz"], axis=1).astype(np.float64)
    return index, np.einsum("hi,hai->ha", position - modules.centre[index], modules.axes[index])


def _hit_reader(acts: Any, events: Table) -> Any:
    """A reader for ACTS that provides the hits of each event."""
    examples, places, offsets = acts.examples, _modules().place, events.ragged("x").offsets
    module, local = (column.tolist() for column in _local(events))
    variance = {volume: [a**2, b**2] for volume, (a, b) in RESOLUTION.items()}

    class Hits(examples.IReader):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__("hits", acts.logging.WARNING)
            self.output = examples.WriteDataHandle(self, examples.MeasurementSubset, "output")
            self.output.initialize("measurements")

        def availableEvents(self) -> tuple[int, int]:  # noqa: N802
            return 0, len(events)

        def read(self, context: Any) -> Any:
            self.container = examples.MeasurementContainer()  # the subset only points into it
            for hit in range(*offsets[context.eventNumber : context.eventNumber + 2]):
                place = places[module[hit]]
                self.container.emplaceMeasurement(place, [0, 1], local[hit], variance[place.volume])
            self.output(context, examples.MeasurementSubset(self.container, range(len(self.container))))
            return examples.ProcessCode.SUCCESS

    return Hits()


def _clock(acts: Any, times: list[float]) -> Any:
    """An algorithm for ACTS that records the time at which it runs."""

    class Clock(acts.examples.IAlgorithm):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(f"clock{id(self)}", acts.logging.WARNING)

        def execute(self, context: Any) -> Any:
            times.append(time.process_time())  # not the wall clock: cores are often shared
            return acts.examples.ProcessCode.SUCCESS

    return Clock()


def _seeding(acts: Any, seeds_per_point: int) -> tuple[Any, ...]:
    """Algorithms: space points of the pixels, triplets of them as seeds, and track parameters of each seed."""
    level, setup = acts.logging.WARNING, generic_detector()
    points = acts.examples.SpacePointMaker(
        level=level,
        trackingGeometry=setup.geometry,
        inputMeasurements="measurements",
        outputSpacePoints="spacepoints",
        geometrySelection=[acts.GeometryIdentifier(volume=volume) for volume in PIXELS],
    )
    (near, far), steps = SEED_STEP, ("", "Top", "Bottom")
    seeds = acts.examples.GridTripletSeedingAlgorithm(
        level=level,
        inputSpacePoints="spacepoints",
        outputSeeds="seeds",
        bFieldInZ=FIELD * acts.UnitConstants.T,
        minPt=SEED_PT,
        cotThetaMax=SEED_SLOPE,
        impactMax=SEED_IMPACT,
        rMax=SEED_RADIUS,
        rMinMiddle=0.0,
        rMaxMiddle=SEED_RADIUS,
        zMin=-SEED_Z,
        zMax=SEED_Z,
        collisionRegionMin=-SEED_ORIGIN,
        collisionRegionMax=SEED_ORIGIN,
        maxSeedsPerSpM=seeds_per_point,
        radLengthPerSeed=SEED_MATERIAL,
        **{f"deltaRMin{step}": near for step in steps},
        **{f"deltaRMax{step}": far for step in steps},
    )
    parameters = acts.examples.TrackParamsEstimationAlgorithm(
        level=level,
        inputSeeds="seeds",
        outputSeeds="estimated_seeds",
        outputTrackParameters="parameters",
        trackingGeometry=setup.geometry,
        magneticField=setup.field,
        initialVarInflation=[SEED_VARIANCE_FACTOR] * 6,
    )
    return points, seeds, parameters


def _finding(acts: Any) -> tuple[Any, ...]:
    """Algorithms: the combinatorial Kalman filter from each seed in both directions, and the removal of duplicates."""
    level = acts.logging.FATAL  # no messages about seeds that give no track
    setup, finder = generic_detector(), acts.examples.TrackFindingAlgorithm
    cuts: tuple[list[float], ...] = ([], [CHI2_MEASUREMENT], [CHI2_OUTLIER], [BRANCHES])
    search = finder(
        level=level,
        inputMeasurements="measurements",
        inputInitialTrackParameters="parameters",
        inputSeeds="estimated_seeds",
        outputTracks="candidates",
        trackingGeometry=setup.geometry,
        magneticField=setup.field,
        findTracks=finder.makeTrackFinderFunction(setup.geometry, setup.field, level),
        findTracksBrem=finder.makeBremTrackFinderFunction(setup.geometry, setup.field, level),
        measurementSelectorCfg=acts.MeasurementSelector.Config([(acts.GeometryIdentifier(), cuts)]),
        trackSelectorCfg=acts.TrackSelector.Config(minMeasurements=HITS_MIN, maxHoles=HOLES_MAX),
        seedDeduplication=True,  # no search from a seed whose hits lie on a track found before
        stayOnSeed=True,
        twoWay=True,
    )
    choice = acts.examples.GreedyAmbiguityResolutionAlgorithm(
        level=level,
        inputTracks="candidates",
        outputTracks="tracks",
        maximumSharedHits=SHARED_MAX,
        nMeasurementsMin=HITS_MIN,
        maximumIterations=AMBIGUITIES_MAX,
    )
    return search, choice


def _track_collector(acts: Any, lists: HitLists) -> Any:
    """An algorithm for ACTS that appends the tracks of each event to `lists`."""
    examples = acts.examples

    class TrackCollector(examples.IAlgorithm):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__("tracks", acts.logging.WARNING)
            self.input = examples.ReadDataHandle(self, examples.ConstTrackContainer, "input")
            self.input.initialize("tracks")

        def execute(self, context: Any) -> Any:
            lists.append([_hits(acts, track) for track in self.input(context.eventStore)])
            return examples.ProcessCode.SUCCESS

    return TrackCollector()


def _hits(acts: Any, track: Any) -> list[int]:
    """The hits that a track was fitted to, without outliers."""
    link = acts.examples.IndexSourceLink.fromSourceLink
    used = [state for state in track.trackStatesReversed if state.typeFlags.isMeasurement]
    return [link(state.uncalibratedSourceLink).index() for state in used if not state.typeFlags.isOutlier]
