"""Majorities and the TrackML score are what their definitions say, and stand beside exact hit sets."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clew import Table
from clew.recipes.tracking import judging, matching
from clew.recipes.tracking.geometry import Detector
from tests.recipes.tracking import Hit, to_table

Pairs = list[tuple[int, int]]


def table(pairs: Pairs, **columns: object) -> Table:
    return to_table([[Hit(80.0 + i, 0.0, float(i), 0, true) for i, (true, _) in enumerate(pairs)]], **columns)


def numbered(pairs: Pairs) -> np.ndarray:
    _, dense = np.unique([-1, *(found for _, found in pairs)], return_inverse=True)
    return dense[1:] - 1


def shared(pairs: Pairs, share: float, *, strict: bool = False) -> set[tuple[int, int]]:
    """(true, found) that have this share of each other's hits."""
    true, found, both = Counter(t for t, _ in pairs), Counter(f for _, f in pairs), Counter(pairs)
    kept = set()
    for (t, f), common in both.items():
        least = min(common / true[t], common / found[f])
        if t >= 0 and f >= 0 and (least > share if strict else least >= share):
            kept.add((t, f))
    return kept


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(-1, 3), st.integers(-1, 3)), max_size=14))
def test_majorities_are_those_of_their_definition(pairs: Pairs) -> None:
    match = matching.match(table(pairs), numbered(pairs))
    for row, share in enumerate(matching.SHARES):
        assert match.true_share[row].sum() == len({t for t, _ in shared(pairs, share)})
        assert match.found_share[row].sum() == len({f for _, f in shared(pairs, share)})
    scored = shared(pairs, 0.5, strict=True)
    assert match.scored.tolist() == [pair in scored for pair in pairs]
    assert match.true_found.sum() == len(shared(pairs, 1.0))


def test_the_trackml_score_weighs_hits() -> None:
    pairs = [(0, 0), (0, 0), (0, 1), (1, 1), (1, -1), (-1, 0)]
    events = table(pairs)
    events = events.join({"hit_weight": events.ragged("x").share([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])})
    score = judging.tallies(events, numbered(pairs), Detector())["trackml_score"]
    assert score.value == pytest.approx((1 + 2) / (1 + 2 + 3 + 4 + 5))  # 2 of 3 each way; (1, 1) has only half
    assert score.error > 0


def test_every_figure_of_tracks_has_a_value_and_an_error() -> None:
    pairs = [(0, 0)] * 3 + [(1, 1)] * 3 + [(1, -1), (2, 2), (2, 2), (2, 3), (-1, 3), (-1, 3)]
    figures = judging.tallies(table(pairs), numbered(pairs), Detector())
    values = {name: item.value for name, item in figures.items() if item.scalar}
    expected = {"efficiency": 1 / 3, "purity": 1 / 4, "ghost_rate": 3 / 4, "event_ratio": 0, "track_f1": 2 / 7}
    expected |= {"efficiency_50": 1, "purity_50": 3 / 4, "efficiency_75": 2 / 3, "purity_75": 1 / 2}
    assert {name: values[name] for name in expected} == pytest.approx(expected)
    assert all(np.isfinite(item.error) for item in figures.values() if item.scalar)


def test_plots_against_momentum_angle_and_multiplicity_are_drawn() -> None:
    pairs = [(0, 0)] * 3 + [(1, 1)] * 3
    figures = judging.tallies(table(pairs), numbered(pairs), Detector())
    names = {"efficiency_pt", "efficiency_theta", "efficiency_eta", "efficiency_multiplicity", "purity_multiplicity"}
    assert names <= figures.keys()
    assert all(figures[name].figure(name) for name in names)
    assert figures["efficiency_multiplicity"].value == 1


def test_true_momenta_are_used_where_they_are_there() -> None:
    events = table([(0, 0), (0, 0), (1, 1)])
    like = events.ragged("x")
    events = events.join({"px": like.share([3.0, 9, 0]), "py": like.share([4.0, 9, 1]), "pz": like.share([5.0, 9, 0])})
    pt, theta = matching.momenta(events, matching.match(events, np.array([0, 0, 1])).true_of_hit)
    np.testing.assert_allclose(pt, [5, 1])
    np.testing.assert_allclose(theta, [45, 90])


def test_an_event_without_a_true_track_counts_as_complete_and_its_tracks_as_ghosts() -> None:
    figures = judging.tallies(table([(-1, 0)] * 3), np.zeros(3, dtype=np.int64), Detector())
    assert np.isnan(figures["efficiency"].value)
    assert (figures["purity"].value, figures["ghost_rate"].value, figures["event_ratio"].value) == (0, 1, 1)
