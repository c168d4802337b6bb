"""The detector of the settings: cylinders or planes, gaps skipped or bridged, units converted."""

from __future__ import annotations

import math

import numpy as np
import pytest
from pydantic import ValidationError

from clew import settings
from clew.errors import ConfigError, DataError
from clew.recipes.tracking import geometry, hitgraph, segments, tracks
from clew.recipes.tracking.geometry import Detector
from clew.recipes.tracking.segments import SegmentCuts
from clew.recipes.tracking.settings import HitGraphBuildingConfig
from tests.recipes.tracking import FOUR, Hit, at, built_pairs, built_triples, to_table

BRIDGED = FOUR.model_copy(update={"gaps": "bridge"})
PLANES = Detector(shape="planes", planes=(100.0, 200.0, 300.0))


def test_a_name_stands_for_a_whole_detector() -> None:
    assert Detector().positions == (81.555, 126.055, 166.555)
    assert (Detector(name="bmn").planar, len(Detector(name="bmn").positions)) == (True, 9)
    assert (Detector(name="trackml").planar, len(Detector(name="trackml").positions)) == (False, 10)


def test_what_is_declared_goes_before_the_name() -> None:
    detector = settings.load_settings(
        "hitgraph", ["detector.name=trackml", "detector.radii=[30, 70, 110]"]
    ).recipe.config.detector
    assert (detector.radii, detector.z_max) == ((30.0, 70.0, 110.0), 1100.0)
    assert Detector.model_validate(detector.model_dump(mode="json")) == detector


@pytest.mark.parametrize("radii", [[5.0], [3.0, 2.0], [1.0, 1.0]])
def test_stations_must_be_two_or_more_and_rise(radii: list[float]) -> None:
    with pytest.raises(ValidationError, match="two or more rising numbers"):
        Detector(radii=tuple(radii))


def test_an_unknown_detector_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"detector\.name"):
        settings.load_settings("tracking", ["detector.name=atlas"])


def hits(stations: list[int]) -> list[Hit]:
    return [at(FOUR.radii[s], math.pi + 0.01 * (s - 1), 5.0 * s, s, track=0) for s in stations]


def test_a_missing_station_is_skipped_or_bridged_as_the_settings_say() -> None:
    event = to_table([hits([0, 1, 3])])
    assert built_pairs(segments.build(event, FOUR, SegmentCuts()), 0) == [(0, 1)]
    bridged = segments.build(event, BRIDGED, SegmentCuts())
    assert set(built_pairs(bridged, 0)) == {(0, 1), (1, 2)}
    assert built_triples(bridged, 0) == [((0, 1, 2), 1)]


def test_a_bridge_over_a_hit_that_is_there_is_no_true_edge() -> None:
    labels = dict(built_triples(segments.build(to_table([hits([0, 1, 2, 3])]), BRIDGED, SegmentCuts()), 0))
    assert {chain for chain, label in labels.items() if label} == {(0, 1, 2), (1, 2, 3)}
    assert labels[0, 1, 3] == labels[0, 2, 3] == 0


def test_a_hit_graph_bridges_too() -> None:
    graph = hitgraph.build(to_table([hits([0, 2, 3])]), BRIDGED, hitgraph.EdgeCuts())
    labels = zip(graph.ragged("link")[0].tolist(), graph.ragged("label")[0].tolist(), strict=True)
    assert sorted(labels) == [([0, 1], 1), ([1, 2], 1)]
    assert tracks.from_links(graph.ragged("link").values, np.ones(2), 3, HitGraphBuildingConfig()).max() == 0


def test_a_station_with_a_length_is_bridged_only_where_it_does_not_reach() -> None:
    short = BRIDGED.model_copy(update={"half_lengths": (50.0,) * 4})
    steep = [at(r, 0.1, r, s, 0) for s, r in enumerate(BRIDGED.radii) if s != 1]
    flat = [at(r, 2.0, 0.1 * r, s, 1) for s, r in enumerate(BRIDGED.radii) if s != 1]
    cuts = hitgraph.EdgeCuts()
    assert len(hitgraph.build(to_table([steep + flat]), BRIDGED, cuts).ragged("label").values) == 4
    assert hitgraph.build(to_table([steep + flat]), short, cuts).ragged("link")[0].tolist() == [[1, 2], [4, 5], [0, 1]]
    with pytest.raises(ConfigError, match="half_lengths must be as many as radii"):
        settings.load_settings("hitgraph", ["detector.half_lengths=[1.0]"])


def test_planes_are_linked_by_x_and_y_and_have_no_seam() -> None:
    straight = [Hit(10.0 * s, -5.0 * s, z, s, 0) for s, z in enumerate(PLANES.planes)]
    across = [Hit(-10.0 * s - 1, 5.0 * s, z, s, 1) for s, z in enumerate(PLANES.planes)]
    graph = segments.build(to_table([[*straight, *across]]), PLANES, SegmentCuts(x_cut=0.15, y_cut=0.2))
    assert (0, 1) in built_pairs(graph, 0) and (3, 4) in built_pairs(graph, 0)
    assert (0, 5) not in built_pairs(graph, 0) and (1, 5) not in built_pairs(graph, 0)
    assert dict(built_triples(graph, 0))[0, 1, 2] == 1


def test_cm_become_mm_and_an_unknown_unit_is_refused() -> None:
    event = to_table([[at(80.0, 0.3, 1.0, 0)]])
    metric = geometry.in_mm(event.join({}, units=dict.fromkeys("xyz", "cm")))
    assert metric.ragged("z").values.tolist() == [10.0]
    assert metric.units["x"] == "mm"
    with pytest.raises(DataError, match="'x' is in 'inch', expected one of mm, cm, m"):
        geometry.in_mm(event.join({}, units={"x": "inch"}))


def test_misplaced_hits_give_numbers_not_infinities() -> None:
    event = to_table([[at(81.0, 0.1, 0.0, 0, 0), at(81.0, 0.1, 1.0, 1, 0), at(81.0, 0.1, 2.0, 2, 0)]])
    assert np.isfinite(segments.build(event, Detector(), SegmentCuts()).ragged("node").values).all()
    assert np.isfinite(hitgraph.build(event, Detector(), hitgraph.EdgeCuts(z0_cut=1e9)).ragged("edge").values).all()
