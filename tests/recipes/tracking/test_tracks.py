"""Tracks are those that a sequential greedy choice gives; matching is comparing sets of hits."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from clew import Table
from clew.recipes.tracking import matching, segments, tracks
from clew.recipes.tracking.geometry import Detector
from clew.recipes.tracking.segments import SegmentCuts
from tests.recipes import tracking
from tests.recipes.tracking import CYLINDERS, FOUR, Hit, built_pairs, built_triples, to_table

Scores = NDArray[np.float64]
LOOSE = SegmentCuts(phi_cut=0.5, z_cut=400, bend_cut=1.0)


def greedy(graphs: Table, event: int, scores: Scores, threshold: float) -> set[frozenset[int]]:
    """Tracks of one event, one edge after the other from the best score down."""
    nodes, chains = built_pairs(graphs, event), [hits for hits, _ in built_triples(graphs, event)]
    accepted_chains: list[tuple[int, int, int]] = []
    for edge in sorted(range(len(chains)), key=lambda number: (-scores[number], number)):
        free = all(chains[edge][role] != other[role] for other in accepted_chains for role in range(3))
        if scores[edge] > threshold and free:
            accepted_chains.append(chains[edge])
    group = {chain: number for number, chain in enumerate(accepted_chains)}
    for a in accepted_chains:
        for b in accepted_chains:
            if a[1:] == b[:2]:
                assert a[1:] in nodes
                group = {c: group[a] if g == group[b] else g for c, g in group.items()}
    owner: dict[int, int] = {}
    for chain in accepted_chains:
        for hit in chain:
            owner.setdefault(hit, group[chain])
    return {frozenset(h for h, o in owner.items() if o == number) for number in owner.values()}


def track_hit_sets(events: Table, track_numbers: NDArray[np.int64]) -> list[set[frozenset[int]]]:
    per_event = list(events.ragged("x").share(track_numbers))
    return [{frozenset(np.flatnonzero(f == n).tolist()) for n in f[f >= 0]} for f in per_event]


@st.composite
def scored(draw: st.DrawFn, detector: Detector) -> tuple[Table, Scores]:
    graphs = segments.build(draw(tracking.events(detector, max_hits=14)), detector, LOOSE)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    digits = draw(st.sampled_from([1, 6]))
    return graphs, rng.random(len(graphs.ragged("edge").values)).round(digits)


def assert_greedy(graphs: Table, scores: Scores) -> None:
    track_numbers = tracks.from_edges(graphs, scores, 0.2)
    per_edge = list(graphs.ragged("edge").share(scores))
    assert track_hit_sets(graphs, track_numbers) == [greedy(graphs, e, per_edge[e], 0.2) for e in range(len(graphs))]
    numbers = np.unique(track_numbers[track_numbers >= 0])
    assert numbers.tolist() == list(range(len(numbers)))


@settings(max_examples=150, deadline=None)
@given(scored(CYLINDERS))
def test_three_stations_give_the_tracks_of_a_greedy_choice(sample: tuple[Table, Scores]) -> None:
    assert_greedy(*sample)


@settings(max_examples=150, deadline=None)
@given(scored(FOUR))
def test_four_stations_give_the_tracks_of_a_greedy_choice(sample: tuple[Table, Scores]) -> None:
    assert_greedy(*sample)


def test_a_track_through_four_stations_is_one_track() -> None:
    hits = [tracking.at(r, 0.1, 0.0, s, track=0) for s, r in enumerate(FOUR.radii)]
    graphs = segments.build(to_table([hits, [], hits]), FOUR, LOOSE)
    assert tracks.from_edges(graphs, np.full(4, 0.9), 0.2).tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert tracks.from_edges(graphs, np.full(4, 0.2), 0.2).tolist() == [-1] * 8


def hit_sets(track_numbers: Sequence[int]) -> set[frozenset[int]]:
    return {
        frozenset(hit for hit, number in enumerate(track_numbers) if number == track)
        for track in track_numbers
        if track >= 0
    }


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(st.tuples(st.integers(-1, 3), st.integers(-1, 3)), max_size=8), max_size=4))
def test_a_match_is_the_exact_set_of_hits(events: list[list[tuple[int, int]]]) -> None:
    table = to_table([[Hit(1, 0, 0, 0, true) for true, _ in event] for event in events])
    numbers = [track + 4 * event if track >= 0 else -1 for event, hits in enumerate(events) for _, track in hits]
    _, dense = np.unique([-1, *numbers], return_inverse=True)
    match = matching.match(table, dense[1:] - 1)
    true = [hit_sets([track for track, _ in hits]) for hits in events]
    predicted = [hit_sets([track for _, track in hits]) for hits in events]
    both = [len(a & b) for a, b in zip(true, predicted, strict=True)]
    for event in range(len(events)):
        assert (match.true_event == event).sum() == len(true[event])
        assert (match.found_event == event).sum() == len(predicted[event])
        assert match.true_found[match.true_event == event].sum() == both[event]
        assert match.found_true[match.found_event == event].sum() == both[event]


def helix(pt: float, theta: float, phi: float, charge: int, start: float = 0.0) -> list[Hit]:
    """The hits of a particle from the beam line in 1 T, on the three stations."""
    radius = pt / 0.299792458 * 1000
    angles = [math.asin(r / (2 * radius)) for r in CYLINDERS.radii]
    z = [start + 2 * radius * angle / math.tan(math.radians(theta)) for angle in angles]
    return [tracking.at(CYLINDERS.radii[s], phi + charge * angles[s], z[s], s, track=0) for s in range(3)]


@pytest.mark.parametrize("pt", [0.06, 0.1, 0.3, 1.5, 20.0])
@pytest.mark.parametrize("charge", [-1, 1])
def test_transverse_momentum_of_a_helix(pt: float, charge: int) -> None:
    events = to_table([helix(pt, 70, phi, charge) for phi in np.linspace(-3.1, 3.1, 9)])
    measured, _ = matching.fitted_kinematics(events, np.repeat(np.arange(9), 3), 1.0)
    np.testing.assert_allclose(measured, pt, rtol=1e-6)


def test_transverse_momentum_follows_the_field() -> None:
    events = to_table([helix(0.5, 70, 0.3, 1)])
    assert matching.fitted_kinematics(events, np.zeros(3, dtype=np.int64), 2.0)[0][0] == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize("theta", [25.0, 60.0, 90.0, 150.0])
def test_polar_angle_of_a_stiff_helix(theta: float) -> None:
    events = to_table([helix(0.3, theta, phi, 1, start=12.0) for phi in (-3.0, 0.0, 2.0)])
    _, measured = matching.fitted_kinematics(events, np.repeat(np.arange(3), 3), 1.0)
    np.testing.assert_allclose(measured, theta, atol=0.1)


def test_a_straight_line_has_no_small_momentum() -> None:
    lines = [
        [tracking.at(r, phi, r - 20, s, track=0) for s, r in enumerate(CYLINDERS.radii)]
        for phi in np.linspace(-3, 3, 50)
    ]
    pt, theta = matching.fitted_kinematics(to_table(lines), np.repeat(np.arange(50), 3), 1.0)
    assert pt.min() > 1000
    np.testing.assert_allclose(theta, 45, atol=1e-6)


def test_noise_belongs_to_no_track() -> None:
    hits = [tracking.at(81.555, 1.0, 0.0, 0), *helix(0.4, 50, 0.3, 1)]
    pt, _ = matching.fitted_kinematics(to_table([hits]), np.array([-1, 0, 0, 0]), 1.0)
    np.testing.assert_allclose(pt, [0.4], rtol=1e-6)
