"""Triplet graphs of the whole detector on real ACTS events: layers, pairs, triplets, labels, cuts."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from clew import Table
from clew.errors import DataError
from clew.recipes.tracking import layers, triplets
from clew.recipes.tracking.acts import simulate_acts
from clew.recipes.tracking.matching import true_kinematics
from clew.recipes.tracking.particle_gun import ParticleGun
from clew.recipes.tracking.recipe_triplets import whole_detector_hits
from clew.recipes.tracking.triplets import TripletCuts
from clew.recipes.tracking.truth import TrueTracks

pytestmark = pytest.mark.skipif(importlib.util.find_spec("acts") is None, reason="pyacts is not installed")


@pytest.fixture(scope="module")
def raw() -> Table:
    """Two events with about 5,000 hits."""
    return simulate_acts(2, seed=3, gun=ParticleGun(particles="ttbar-like", pileup=5))


@pytest.fixture(scope="module")
def events(raw: Table) -> Table:
    return whole_detector_hits(raw)


@pytest.fixture(scope="module")
def samples(events: Table) -> Table:
    return triplets.build(events, TripletCuts())


def test_every_hit_is_on_a_station_of_the_detector(raw: Table, events: Table) -> None:
    assert len(layers.STATIONS) == 48
    assert len(events.ragged("x").values) == len(raw.ragged("x").values)
    assert len(np.unique(events.ragged("station").values)) > 40


def test_stations_rise_along_true_tracks(events: Table) -> None:
    truth = TrueTracks.of(events)
    pt, _ = true_kinematics(events, truth.track)
    radius = np.sqrt(sum(events.ragged(name).values.astype(float) ** 2 for name in "xyz"))
    selected = pt[truth.track] > 1
    order = np.lexsort((truth.rank, truth.track))[selected[np.lexsort((truth.rank, truth.track))]]
    later = np.diff(truth.rank[order]) > 0
    same = np.diff(truth.track[order]) == 0
    outwards = np.diff(radius[order]) > 0
    assert outwards[same & later].mean() > 0.999


def test_links_join_stations_in_rising_order_and_cover_true_steps(events: Table) -> None:
    links = layers.layer_links()
    assert (links.stations[:, 0] < links.stations[:, 1]).all()
    assert (links.slopes[:, 0] < links.slopes[:, 1]).all()
    measured, tracks = layers.measure_links(events)
    known = {tuple(pair) for pair in links.stations.tolist()}
    covered = [tuple(pair) in known for pair in measured.stations.tolist()]
    assert np.average(covered, weights=tracks) > 0.98


def test_written_links_are_read_back(events: Table, tmp_path: Path) -> None:
    links, tracks = layers.measure_links(events)
    layers.write_links(tmp_path / "links.csv", links, tracks)
    read = layers.read_links(tmp_path / "links.csv")
    order = np.lexsort((-tracks, links.stations[:, 0]))
    np.testing.assert_array_equal(read.stations, links.stations[order])
    np.testing.assert_allclose(read.slopes, links.slopes[order], atol=1e-4)


def test_nearly_all_triplets_of_particles_above_1_gev_are_in_the_graph(events: Table, samples: Table) -> None:
    truth = TrueTracks.of(events)
    pt, _ = true_kinematics(events, truth.track)
    hits = np.bincount(truth.track[truth.track >= 0])
    triples = triplets.triplet_hits(samples)[samples.ragged("label").values > 0]
    tracks = np.flatnonzero((pt > 1) & (hits >= 6))
    middles = {(truth.track[b], truth.rank[b]) for b in triples[:, 1]}
    inner = (truth.rank > 0) & np.isin(truth.track, tracks)
    last = np.zeros(len(pt), dtype=np.int64)
    np.maximum.at(last, truth.track[truth.track >= 0], truth.rank[truth.track >= 0])
    wanted = {
        (truth.track[hit], truth.rank[hit]) for hit in np.flatnonzero(inner) if truth.rank[hit] < last[truth.track[hit]]
    }
    assert len(wanted) > 300
    assert len(wanted & middles) / len(wanted) > 0.97


def test_graphs_have_few_false_triplets(samples: Table) -> None:
    assert samples.ragged("label").values.mean() > 0.3
    assert np.isfinite(samples.ragged("node").values).all() and np.isfinite(samples.ragged("edge").values).all()
    assert samples.ragged("node").values.shape[1] == triplets.NODE_FEATURES
    assert samples.ragged("edge").values.shape[1] == triplets.EDGE_FEATURES


def test_graphs_of_events_do_not_depend_on_other_events(events: Table, samples: Table) -> None:
    alone = triplets.build(events.slice(1, 2), TripletCuts())
    together = samples.slice(1, 2)
    for name in ("node", "node_hits", "link", "edge", "label"):
        np.testing.assert_array_equal(alone.ragged(name).values, together.ragged(name).values)


def test_a_graph_does_not_change_when_the_event_is_turned(events: Table, samples: Table) -> None:
    x, angle = events.ragged("x"), 3.0
    cosine, sine = np.cos(angle), np.sin(angle)
    turned = events.join(
        {
            "x": x.share(x.values * cosine - events.ragged("y").values * sine),
            "y": x.share(x.values * sine + events.ragged("y").values * cosine),
        }
    )
    triples = [
        {tuple(row) for row in triplets.triplet_hits(each).tolist()}
        for each in (samples, triplets.build(turned, TripletCuts()))
    ]
    assert len(triples[0] & triples[1]) > 0.999 * len(triples[0] | triples[1])


def test_too_many_pairs_are_an_error_that_names_the_setting(events: Table) -> None:
    with pytest.raises(DataError, match=r"tighten triplets\.pt_min"):
        triplets.build(events, TripletCuts(max_per_event=100))


def test_an_event_without_hits_has_an_empty_graph(events: Table) -> None:
    empty = events.select("x", np.zeros(len(events.ragged("x").values), dtype=bool))
    graphs = triplets.build(empty, TripletCuts())
    assert len(graphs) == 2 and len(graphs.ragged("link").values) == 0


def test_pileup_adds_particles_and_keeps_the_hard_ones() -> None:
    rng = [np.random.default_rng([1, 2]) for _ in range(2)]
    gun = ParticleGun(particles="ttbar-like", pileup=10)
    hard = ParticleGun(particles="ttbar-like").generate(rng[0])
    both = gun.generate(rng[1])
    np.testing.assert_array_equal(both.momentum[: len(hard.pdg)], hard.momentum)
    assert 50 < len(both.pdg) - len(hard.pdg) < 900
    assert gun.label == "ttbar-like-70to230-pileup10"


def test_lost_hits_are_removed_at_random_and_the_others_stay(raw: Table) -> None:
    losing = simulate_acts(2, seed=3, gun=ParticleGun(particles="ttbar-like", pileup=5, lost_hits=0.1))
    before, after = ({*map(tuple, positions(each))} for each in (raw, losing))
    assert after < before
    assert abs(len(after) / len(before) - 0.9) < 0.02
    assert losing.ragged("nhits").values.sum() == len(losing.ragged("x").values)
    assert len(losing.ragged("pdg").values) == len(raw.ragged("pdg").values)


def positions(events: Table) -> list[list[float]]:
    columns = np.stack([events.ragged(name).values for name in "xyz"], axis=1).tolist()
    assert isinstance(columns, list)
    return columns


def test_bridges_join_two_links_and_keep_the_others() -> None:
    plain, bridged = layers.layer_links(), layers.layer_links(bridged=True)
    pairs = [{tuple(pair) for pair in links.stations.tolist()} for links in (plain, bridged)]
    assert pairs[0] < pairs[1]
    joined = {(a, d) for a, b in pairs[0] for c, d in pairs[0] if b == c}
    assert pairs[1] - pairs[0] <= joined
    assert (bridged.slopes[:, 0] < bridged.slopes[:, 1]).all()
