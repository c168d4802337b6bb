"""Majority matching on lists of hits, against loops and by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew import Ragged, Table
from clew.recipes.tracking import majority

Events = list[list[int]]
Tracks = list[list[list[int]]]


def _events(track: Events, pt: float = 2.0) -> Table:
    column = Ragged.from_lists(track, dtype=np.int64)
    momentum = np.full(len(column.values), pt, np.float32)
    return Table({"track": column, "tpx": column.share(momentum), "tpy": column.share(0 * momentum)})


def _tracks(tracks: Tracks) -> Table:
    hit = Ragged.from_lists([[h for t in event for h in t] for event in tracks], dtype=np.int64)
    number = [n for event in tracks for n, t in enumerate(event) for _ in t]
    return Table({"found": hit.share(np.array(number, np.int64)), "hit": hit})


def _by_hand(events: Events, tracks: Tracks, share: float) -> tuple[float, float, float]:
    """Passed counts of efficiency, purity and duplicates, for particles of any number of hits."""
    found, good = set(), 0
    for number, (owner, lists) in enumerate(zip(events, tracks, strict=True)):
        for hits in (set(hits) for hits in lists if hits):
            owners = [owner[hit] for hit in hits if owner[hit] != -1]
            if owners:
                best = min(set(owners), key=lambda p: (-owners.count(p), p))
                common = owners.count(best)
                if common >= share * len(hits) and common >= share * owner.count(best):
                    found.add((number, best))
                    good += 1
    return len(found), good, good - len(found)


@st.composite
def _samples(draw: st.DrawFn) -> tuple[Events, Tracks]:
    events = draw(st.lists(st.lists(st.integers(-1, 3), max_size=8), min_size=1, max_size=4))
    tracks = [
        draw(st.lists(st.lists(st.integers(0, len(e) - 1), min_size=1, max_size=6), max_size=4)) if e else []
        for e in events
    ]
    return events, tracks


@given(_samples())
def test_counts_are_those_of_a_loop(sample: tuple[Events, Tracks]) -> None:
    events, tracks = sample
    figures = majority.judge(_events(events), _tracks(tracks), hits_min=1)
    for share, name in ((0.5, "50"), (0.75, "75")):
        counts = [figures[f"{figure}_{name}"].passed for figure in ("efficiency", "purity", "duplicates")]
        assert counts == list(_by_hand(events, tracks, share))
    assert figures["purity_50"].total == sum(len(event) for event in tracks)
    assert figures["efficiency_50"].total == sum(len(set(event) - {-1}) for event in events)


def test_both_the_track_and_the_particle_must_have_the_share() -> None:
    events = _events([[1] * 8 + [2] * 8])
    part = majority.judge(events, _tracks([[[0, 1, 2, 3, 4]]]))
    assert (part["efficiency_50"].passed, part["efficiency_75"].passed) == (1, 0)
    mixed = majority.judge(events, _tracks([[[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]]]))
    assert (mixed["purity_50"].passed, mixed["purity_75"].passed) == (1, 0)


@pytest.mark.parametrize(("pt", "wanted"), [(0.9, 0), (1.1, 1)])
def test_efficiency_counts_particles_above_the_limit_and_purity_all(pt: float, wanted: int) -> None:
    figures = majority.judge(_events([[4] * 7], pt), _tracks([[list(range(7))]]))
    assert (figures["efficiency_50"].total, figures["purity_50"].passed) == (wanted, 1)


def test_no_tracks_are_no_error() -> None:
    figures = majority.judge(_events([[1] * 6, []]), _tracks([[], []]))
    assert (figures["efficiency_50"].value, figures["purity_50"].total) == (0, 0)
