"""Segment graphs are those that a loop over all pairs and triples of hits would give."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from pydantic import ValidationError

from clew import Table
from clew.errors import DataError
from clew.recipes.tracking import segments
from clew.recipes.tracking.geometry import Detector
from clew.recipes.tracking.segments import SegmentCuts
from tests.recipes import tracking
from tests.recipes.tracking import CYLINDERS, FOUR, Hit, at, built_pairs, built_triples, generated, to_lists, to_table

CUTS = SegmentCuts()
WIDE = SegmentCuts(phi_cut=3.1, z_cut=1000, bend_cut=2.5)


def assert_as_by_hand(events: Table, detector: Detector, cuts: SegmentCuts) -> None:
    graphs = segments.build(events, detector, cuts)
    for event, hits in enumerate(to_lists(events)):
        nodes, edges = built_pairs(graphs, event), built_triples(graphs, event)
        assert len(set(nodes)) == len(nodes)
        assert set(nodes) == tracking.pairs(hits, cuts)
        assert len(dict(edges)) == len(edges)
        assert dict(edges) == tracking.triples(hits, detector, cuts)


@settings(max_examples=150, deadline=None)
@given(tracking.events())
def test_graphs_are_those_of_the_loops(events: Table) -> None:
    assert_as_by_hand(events, CYLINDERS, CUTS)


@settings(max_examples=50, deadline=None)
@given(tracking.events(FOUR))
def test_graphs_of_four_stations_are_those_of_the_loops(events: Table) -> None:
    assert_as_by_hand(events, FOUR, CUTS)


@settings(max_examples=50, deadline=None)
@given(tracking.events())
def test_cuts_as_wide_as_they_go_link_every_pair_once(events: Table) -> None:
    assert_as_by_hand(events, CYLINDERS, WIDE)


def test_generated_events_have_the_graphs_of_the_loops() -> None:
    assert_as_by_hand(generated(8, seed=3), CYLINDERS, CUTS)


def test_the_order_of_hits_within_an_event_does_not_matter() -> None:
    events = generated(5, seed=4)
    lists = to_lists(events)
    rng = np.random.default_rng(0)
    orders = [rng.permutation(len(hits)) for hits in lists]
    mixed = to_table([[hits[i] for i in order] for hits, order in zip(lists, orders, strict=True)])
    plain, other = segments.build(events, CYLINDERS, CUTS), segments.build(mixed, CYLINDERS, CUTS)
    for event, order in enumerate(orders):
        back = {((*(int(order[i]) for i in hits),), label) for hits, label in built_triples(other, event)}
        assert back == set(built_triples(plain, event))


def test_a_track_across_the_seam_stays_whole() -> None:
    track = [at(r, math.pi + 0.02 * (s - 1), 10.0 * s, s, track=0) for s, r in enumerate(CYLINDERS.radii)]
    assert track[0].y > 0 > track[2].y
    graphs = segments.build(to_table([track]), CYLINDERS, CUTS)
    assert built_triples(graphs, 0) == [((0, 1, 2), 1)]


@pytest.mark.parametrize("features", ["positions", "directions"])
def test_features_do_not_jump_at_the_seam(features: str) -> None:
    cuts = SegmentCuts.model_validate({"features": features})
    hits = [at(81.555, math.pi - 0.01, 0.0, 0), at(126.055, math.pi + 0.01, 0.0, 1)]
    elsewhere = [at(81.555, math.pi - 0.11, 0.0, 0), at(126.055, math.pi - 0.09, 0.0, 1)]
    graphs = segments.build(to_table([hits, elsewhere]), CYLINDERS, cuts)
    crossing, plain = graphs.ragged("node").values
    assert np.abs(crossing - plain).max() < 0.1


def test_directions_are_those_of_the_line_through_the_hits() -> None:
    """A line from z = 7 mm at the beam with dz/dr = 0.5, which turns by 0.001 per mm: the same for both segments."""
    hits = [at(r, 0.001 * r, 7 + 0.5 * r, s, track=0) for s, r in enumerate(CYLINDERS.radii)]
    cuts = SegmentCuts.model_validate({"features": "directions"})
    nodes = segments.build(to_table([hits]), CYLINDERS, cuts).ragged("node").values
    expected = [0.001 * segments.TURN_GAIN, 7 / segments.BEAM_SCALE, 0.5 * segments.SLOPE_GAIN]
    np.testing.assert_allclose(nodes[:, 1:4], [expected, expected], rtol=1e-3)
    np.testing.assert_allclose(nodes[:, 4], [1 / 3, 2 / 3], rtol=1e-6)


def test_a_missing_station_links_nothing() -> None:
    hits = [at(81.555, 0.1, 0.0, 0, track=0), at(166.555, 0.1, 0.0, 2, track=0)]
    graphs = segments.build(to_table([hits]), CYLINDERS, CUTS)
    assert graphs.ragged("node").values.shape == (0, 5)
    assert graphs.ragged("edge").values.shape == (0, 2)


def test_events_without_hits_have_empty_graphs_in_their_place() -> None:
    whole = [at(r, 0.1, 0.0, s, track=0) for s, r in enumerate(CYLINDERS.radii)]
    graphs = segments.build(to_table([[], whole, [], whole[:1], whole]), CYLINDERS, CUTS)
    assert graphs.ragged("node").lengths.tolist() == [0, 2, 0, 0, 2]
    assert graphs.ragged("edge").lengths.tolist() == [0, 1, 0, 0, 1]
    assert len(segments.build(to_table([]), CYLINDERS, CUTS)) == 0


def test_noise_makes_no_true_edge() -> None:
    noise = [at(r, 0.1, 0.0, s) for s, r in enumerate(CYLINDERS.radii)]
    graphs = segments.build(to_table([noise]), CYLINDERS, CUTS)
    assert graphs.ragged("label").values.tolist() == [0]


@pytest.mark.parametrize("station", [-1, 3])
def test_a_station_the_detector_does_not_have_is_an_error(station: int) -> None:
    hits = [at(81.555, 0.1, 0.0, 0), at(81.555, 0.1, 0.0, station)]
    with pytest.raises(DataError, match=f"a hit has station {station}, the detector has 0 to 2"):
        segments.build(to_table([hits]), CYLINDERS, CUTS)


def test_a_cut_of_more_than_half_a_turn_is_refused() -> None:
    with pytest.raises(ValidationError, match="phi_cut"):
        SegmentCuts(phi_cut=3.5)


def published(hits: list[Hit]) -> tuple[set[tuple[int, int]], dict[tuple[int, int, int], int]]:
    """Nodes and edges with the published cuts, in scaled units, the angle measured from y, the seam lost."""

    def scaled(hit: Hit) -> tuple[float, float, float]:
        r, phi = math.hypot(hit.x, hit.y), math.atan2(hit.x, hit.y)
        return 2 * (r - 80) / (167 - 80) - 1, 2 * (phi + 3.15) / 6.3 - 1, 2 * (hit.z + 423.5) / 847 - 1

    place = [scaled(hit) for hit in hits]
    steps = {
        (i, j): tuple(b - a for a, b in zip(place[i], place[j], strict=True))
        for i, j in itertools.permutations(range(len(hits)), 2)
        if hits[j].station == hits[i].station + 1
    }
    nodes = {pair for pair, (_, dphi, dz) in steps.items() if abs(dphi) < 0.07 and abs(dz) < 0.32}
    edges = {
        (i, j, k): int(hits[i].track == hits[j].track == hits[k].track != -1)
        for (i, j), (middle, k) in itertools.product(nodes, nodes)
        if j == middle and math.dist(steps[i, j], steps[j, k]) < 0.16
    }
    return nodes, edges


def crosses_their_seam(hits: list[Hit], chain: tuple[int, ...]) -> bool:
    phi = [math.atan2(hits[i].x, hits[i].y) for i in chain]
    return any(abs(b - a) > math.pi for a, b in itertools.pairwise(phi))


def test_the_public_sample_has_the_published_graphs_and_those_they_lose_at_the_seam(public: Table) -> None:
    graphs = segments.build(public, CYLINDERS, SegmentCuts(features="positions"))
    extra = 0
    for event, hits in enumerate(to_lists(public)):
        nodes, edges = published(hits)
        built_nodes, built_edges = built_pairs(graphs, event), dict(built_triples(graphs, event))
        assert {pair for pair in built_nodes if not crosses_their_seam(hits, pair)} == nodes
        assert {c: y for c, y in built_edges.items() if not crosses_their_seam(hits, c)} == edges
        extra += len(built_nodes) - len(nodes)
    assert extra > 0
