"""Prefixes are the seeds and the true tracks; steps are the hits near their continuation, and the true next ones."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import assume, given, settings

from clew import Table, concat
from clew.recipes.tracking import TrackNet, sequences
from clew.recipes.tracking.geometry import Detector
from clew.recipes.tracking.sequences import SeedCuts
from tests.recipes import tracking
from tests.recipes.tracking import CYLINDERS, FOUR, Hit, at, generated, to_lists, to_table, turn
from tests.recipes.tracking.test_hitgraph import by_hand

CUTS = SeedCuts(turn_cut=0.0061, z0_cut=121.3, slope_cut=3.03, reach_phi=0.1007, reach_z=10.03)

NARROWER, WIDER = (
    CUTS.model_copy(
        update={name: (1 + sign * 1e-9) * getattr(CUTS, name) for name in ("turn_cut", "z0_cut", "slope_cut")}
    )
    for sign in (-1, 1)
)
"""Cuts between which rounding decides."""


def chain(samples: Table, event: int, prefix: int) -> tuple[int, ...]:
    """The hits of a prefix, from the first to the newest."""
    parent = int(samples.ragged("parent")[event][prefix])
    before = () if parent == prefix else chain(samples, event, parent)
    return (*before, int(samples.ragged("prefix")[event][prefix]))


def is_true(hits: list[Hit], members: tuple[int, ...]) -> bool:
    return len({hits[i].track for i in members} | {-1}) == 2 and all(hits[i].track != -1 for i in members)


def follows(hits: list[Hit], prefix: tuple[int, ...], hit: int) -> bool:
    """Whether a hit is near the straight continuation of the last two, or is their true next one."""
    a, b, c = (hits[i] for i in (*prefix[-2:], hit))
    if c.station != b.station + 1:
        return False
    w = [math.hypot(each.x, each.y) for each in (a, b, c)]
    share = (w[2] - w[1]) / (w[1] - w[0])
    du = math.remainder(turn(b, c) - turn(a, b) * share, math.tau)
    dv = c.z - b.z - (b.z - a.z) * share
    return (abs(du) < CUTS.reach_phi and abs(dv) < CUTS.reach_z) or is_true(hits, (*prefix, hit))


def assert_as_by_hand(events: Table, detector: Detector) -> None:
    samples = sequences.build(events, detector, CUTS)
    last = len(detector.radii) - CUTS.min_hits
    for event, hits in enumerate(to_lists(events)):
        chains = [chain(samples, event, prefix) for prefix in range(len(samples.ragged("prefix")[event]))]
        assert len(set(chains)) == len(chains)
        seeds = {pair for pair in by_hand(hits, CUTS) if hits[pair[0]].station <= last}
        assert {members for members in chains if len(members) == 2} == seeds
        assert [len(members) - 1 for members in chains] == samples.ragged("level")[event].tolist()
        assert all(is_true(hits, members) for members in chains if len(members) > 2)
        columns = (samples.ragged(name)[event].tolist() for name in ("step", "step_hit", "step_label"))
        steps = {(chains[prefix], hit): label for prefix, hit, label in zip(*columns, strict=True)}
        longer = [members for members in chains if len(members) > 1]
        expected = {
            (p, c): int(is_true(hits, (*p, c))) for p in longer for c in range(len(hits)) if follows(hits, p, c)
        }
        assert steps == expected


def unspun(events: Table) -> Table:
    """Only the first hit of a track on each station keeps its track number."""
    lists: list[list[Hit]] = []
    for hits in to_lists(events):
        stations_of_tracks: set[tuple[int, int]] = set()
        lists.append([])
        for hit in hits:
            again = (hit.track, hit.station) in stations_of_tracks
            lists[-1].append(hit._replace(track=-1) if again else hit)
            stations_of_tracks.add((hit.track, hit.station))
    return to_table(lists)


@settings(max_examples=100, deadline=None)
@given(tracking.events(FOUR))
def test_sequences_of_four_stations_are_those_of_the_loops(events: Table) -> None:
    events = without_holes(unspun(events))
    assume(all(by_hand(hits, NARROWER) == by_hand(hits, WIDER) for hits in to_lists(events)))
    assert_as_by_hand(events, FOUR)


def without_holes(events: Table) -> Table:
    """Tracks that miss a station become noise."""
    from clew.data.transforms import DropHoles

    return DropHoles()(events)


def test_sequences_of_generated_events_are_those_of_the_loops() -> None:
    assert_as_by_hand(generated(6, seed=5), CYLINDERS)


def test_true_tracks_grow_to_their_end() -> None:
    track = [at(r, math.pi + 0.01 * s, 5.0 * s, s, track=3) for s, r in enumerate(FOUR.radii)]
    samples = sequences.build(to_table([track]), FOUR, SeedCuts())
    chains = [chain(samples, 0, prefix) for prefix in range(len(samples.ragged("prefix")[0]))]
    assert (0, 1, 2, 3) in chains
    assert samples.ragged("step_label")[0].sum() == 3  # 01-2, 012-3, and 12-3, a seed as well


def test_events_prepared_together_are_those_prepared_alone() -> None:
    events, recipe = generated(6, seed=2), TrackNet()
    together = recipe.prepare(events)
    alone = concat([recipe.prepare(events.slice(event, event + 1)) for event in range(6)])
    for name in TrackNet.columns:
        np.testing.assert_array_equal(together.ragged(name).offsets, alone.ragged(name).offsets)
        np.testing.assert_array_equal(together.ragged(name).values, alone.ragged(name).values)


def test_events_without_hits_have_no_sequences() -> None:
    samples = TrackNet().prepare(to_table([[], [at(81.555, 0.1, 0.0, 0, 0)]]))
    assert samples.ragged("prefix").lengths.tolist() == [0, 0]
    assert samples.ragged("step").lengths.tolist() == [0, 0]
