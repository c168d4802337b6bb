"""Hit graphs are those that a loop over all pairs of hits would give."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

import clew
from clew import Table, concat
from clew.recipes.tracking import HitGraph, graphfile, hitgraph
from clew.recipes.tracking.geometry import Detector
from clew.recipes.tracking.hitgraph import EdgeCuts
from clew.settings import load_settings
from tests.recipes import tracking
from tests.recipes.tracking import CYLINDERS, FOUR, Hit, at, generated, to_lists, to_table, turn

CUTS = EdgeCuts(turn_cut=0.00513, z0_cut=101.3, slope_cut=2.51)


def by_hand(hits: list[Hit], cuts: EdgeCuts) -> dict[tuple[int, int], int]:
    """Edges by trying every pair."""
    labels = {}
    for (i, a), (j, b) in itertools.permutations(enumerate(hits), 2):
        dr = math.hypot(b.x, b.y) - math.hypot(a.x, a.y)
        if b.station != a.station + 1:
            continue
        slope = (b.z - a.z) / dr
        z0 = a.z - slope * math.hypot(a.x, a.y)
        if abs(turn(a, b)) < cuts.turn_cut * dr and abs(slope) < cuts.slope_cut and abs(z0) < cuts.z0_cut:
            labels[i, j] = int(a.track == b.track != -1)
    return labels


def assert_as_by_hand(events: Table, detector: Detector, cuts: EdgeCuts) -> None:
    graphs = hitgraph.build(events, detector, cuts)
    for event, hits in enumerate(to_lists(events)):
        links = [(int(i), int(j)) for i, j in graphs.ragged("link")[event]]
        assert len(set(links)) == len(links)
        assert dict(zip(links, graphs.ragged("label")[event].tolist(), strict=True)) == by_hand(hits, cuts)


@settings(max_examples=100, deadline=None)
@given(tracking.events(FOUR))
def test_graphs_are_those_of_the_loop(events: Table) -> None:
    assert_as_by_hand(events, FOUR, CUTS)


def test_generated_events_have_the_graphs_of_the_loop() -> None:
    assert_as_by_hand(generated(8, seed=3), CYLINDERS, CUTS)


def test_edges_over_the_seam_are_short() -> None:
    track = [at(r, math.pi + 0.02 * (s - 1), 10.0 * s, s, track=0) for s, r in enumerate(CYLINDERS.radii)]
    edge_features = hitgraph.build(to_table([track]), CYLINDERS, EdgeCuts()).ragged("edge").values
    assert edge_features.shape == (2, 4)
    assert np.abs(edge_features).max() < 5


def test_features_of_an_edge_are_those_of_the_line_through_its_hits() -> None:
    """A line from z = 7 mm at the beam with dz/dr = 0.5, which turns by 0.001 per mm."""
    hits = [at(r, 0.001 * r, 7 + 0.5 * r, s, track=0) for s, r in enumerate(CYLINDERS.radii)]
    edges = hitgraph.build(to_table([hits]), CYLINDERS, EdgeCuts()).ragged("edge").values
    of_turn, of_slope, of_beam = hitgraph.feature_scales(CYLINDERS)
    depth = np.diff(CYLINDERS.radii) / CYLINDERS.scales[0]
    expected = [[0.001 * of_turn, 0.5 * of_slope, 7 * of_beam, each] for each in depth]
    np.testing.assert_allclose(edges, expected, rtol=1e-4)


def test_events_prepared_together_are_those_prepared_alone() -> None:
    events, recipe = generated(6, seed=2), HitGraph()
    together = recipe.prepare(events)
    alone = concat([recipe.prepare(events.slice(event, event + 1)) for event in range(6)])
    for name in ("node", "link", "edge", "label"):
        np.testing.assert_array_equal(together.ragged(name).values, alone.ragged(name).values)


@pytest.fixture(scope="module")
def sectors(graph_file: Path) -> Table:
    return concat(list(HitGraph().read(str(graph_file)))[:2])


def test_the_graph_file_is_read_with_its_edges(sectors: Table, graph_file: Path) -> None:
    with np.load(graph_file) as file:
        sizes, edges = np.diff(file["train_node_off"][:401]), file["train_edge_off"][400]
        labels = file["train_y"][:edges]
    assert sectors.ragged("x").lengths.tolist() == sizes.tolist()
    np.testing.assert_array_equal(sectors.ragged("label").values, labels)
    assert sectors.ragged("station").values.max() == 9
    inner, outer = (sectors.ragged("station").values[_links(sectors)[:, side]] for side in (0, 1))
    assert (outer == inner + 1).mean() > 0.99


def _links(table: Table) -> np.ndarray:
    link = table.ragged("link")
    return link.values + table.ragged("x").offsets[link.events][:, None]


def test_true_edges_of_the_graph_file_stay_within_a_track(sectors: Table) -> None:
    true = _links(sectors)[sectors.ragged("label").values > 0]
    track = sectors.ragged("track").values
    np.testing.assert_array_equal(track[true[:, 0]], track[true[:, 1]])
    assert (np.unique(track[track >= 0], return_counts=True)[1] >= graphfile.MIN_HITS).all()


def test_sectors_of_one_event_stay_together(sectors: Table) -> None:
    assert HitGraph.defaults["prepare"] == {"split_by": "collision"}
    samples = HitGraph().prepare(sectors)
    assert (samples.fixed("event") // 100 == samples.fixed("collision")).all()
    assert len(np.unique(samples.fixed("event"))) == len(samples)
    assert HitGraph().prepare(generated(3, 1)).fixed("collision").tolist() == [0, 1, 2]


@pytest.mark.slow
def test_no_collision_of_the_graph_file_stands_on_two_sides(graph_file: Path, tmp_path: Path) -> None:
    shipped = load_settings("hitgraph", ["detector.name=trackml"])
    data = clew.prepare(
        shipped.recipe, shipped.prepare, input=[str(graph_file)], output=str(tmp_path / "dataset"), workers=1
    )
    sides = [set(data.read(split, columns=["collision"]).fixed("collision").tolist()) for split in data.splits]
    assert sum(data.splits.values()) == 1600
    assert sum(len(side) for side in sides) == len(set().union(*sides)) == 100
