"""Majorities and the TrackML score follow their definitions and agree with exact hit sets."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clew import Table
from clew.errors import DataError
from clew.metrics import Metric, Ratio
from clew.recipes.tracking import matching
from clew.recipes.tracking.geometry import Detector
from clew.recipes.tracking.metrics import ALL_TRACKS, TrackingMetricsConfig, make_metrics
from tests.recipes.tracking import CYLINDERS, Hit, to_table

Pairs = list[tuple[int, int]]
Tracks = list[list[int]]


def evaluated(
    events: Table, track_numbers: np.ndarray, config: TrackingMetricsConfig = ALL_TRACKS, detector: Detector = CYLINDERS
) -> dict[str, Metric]:
    return make_metrics(events, matching.match(events, track_numbers), detector, config)


def table(pairs: Pairs, **columns: object) -> Table:
    return to_table([[Hit(80.0 + i, 0.0, float(i), 0, true) for i, (true, _) in enumerate(pairs)]], **columns)


def numbered(pairs: Pairs) -> np.ndarray:
    _, dense = np.unique([-1, *(track for _, track in pairs)], return_inverse=True)
    return dense[1:] - 1


def owners(true: list[int], tracks: Tracks) -> list[tuple[int, float]]:
    """By loops: the true track with most hits of each reconstructed one, and the smaller of both shared fractions."""
    majorities = []
    for hits in tracks:
        hit_counts = Counter(true[hit] for hit in hits if true[hit] != -1)
        best = min(hit_counts, key=lambda each: (-hit_counts[each], each), default=-1)
        majorities.append(
            (best, min(hit_counts[best] / len(hits), hit_counts[best] / true.count(best)) if hit_counts else 0.0)
        )
    return majorities


def check(true: list[int], tracks: Tracks, match: matching.Match) -> None:
    majorities = owners(true, tracks)
    for row, share in enumerate(matching.MAJORITIES):
        good = [best for best, score in majorities if score >= share]
        assert (match.true_majority[row].sum(), match.found_majority[row].sum()) == (len(set(good)), len(good))
    exact = [best for best, score in majorities if score == 1]
    assert (match.true_found.sum(), match.found_true.sum()) == (len(set(exact)), len(exact))
    pairs = zip(majorities, tracks, strict=True)
    scored = {hit for (best, score), hits in pairs if score > 0.5 for hit in hits if true[hit] == best}
    assert set(np.flatnonzero(match.scored_hits)) == scored


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(-1, 3), st.integers(-1, 3)), max_size=14))
def test_matches_are_those_of_their_definition(pairs: Pairs) -> None:
    dense = numbered(pairs)
    tracks = [np.flatnonzero(dense == number).tolist() for number in range(dense.max(initial=-1) + 1)]
    check([true for true, _ in pairs], tracks, matching.match(table(pairs), dense))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(-1, 3), min_size=1, max_size=10), st.data())
def test_tracks_that_share_hits_are_matched_alike(true: list[int], data: st.DataObject) -> None:
    hits = st.sets(st.integers(0, len(true) - 1), min_size=1, max_size=6)
    tracks = [sorted(each) for each in data.draw(st.lists(hits, max_size=4))]
    track_numbers = np.repeat(np.arange(len(tracks)), [len(each) for each in tracks])
    flat = np.array([hit for each in tracks for hit in each], dtype=np.int64)
    check(true, tracks, matching.match_lists(table([(each, -1) for each in true]), track_numbers, flat))


def test_half_of_two_tracks_is_a_match_with_one_of_them() -> None:
    match = matching.match(table([(0, 0)] * 4 + [(1, 0)] * 4), np.zeros(8, dtype=np.int64))
    assert match.true_majority[0].tolist() == [True, False]


def test_a_second_track_of_a_particle_is_a_duplicate() -> None:
    pairs = [(0, 0)] * 4 + [(0, 1)] * 4
    assert evaluated(table(pairs), numbered(pairs))["duplicate_rate"].value == 0.5
    weighted = table(pairs).join({"weight": [3.0]})
    assert evaluated(weighted, numbered(pairs))["duplicate_rate"] == Ratio(3.0, 6.0, 18.0)


def test_only_selected_tracks_count_for_efficiency_and_all_for_purity() -> None:
    pairs = [(0, 0)] * 3 + [(1, 1)] * 4
    events = table(pairs)
    px = events.ragged("x").share(np.array([2.0] * 3 + [0.5] * 4))
    events = events.join({"px": px, "py": px.share(0 * px.values), "pz": px})
    for config, total in (
        (TrackingMetricsConfig(), 2),
        (TrackingMetricsConfig(pt_min=1.0), 1),
        (TrackingMetricsConfig(hits_min=4), 1),
        (TrackingMetricsConfig(pt_min=1.0, hits_min=4), 0),
    ):
        figures = evaluated(events, numbered(pairs), config)
        assert (figures["efficiency_75"].total, figures["purity_75"].passed) == (total, 2)  # type: ignore[attr-defined]


def test_an_event_is_complete_if_all_its_selected_tracks_are_found() -> None:
    """The short track is lost in the first event, a long one in the second."""
    events = to_table(
        [
            [Hit(80.0 + i, 0.0, float(i), 0, 0) for i in range(4)] + [Hit(90.0 + i, 0.0, 0.0, 0, 1) for i in range(2)],
            [Hit(80.0 + i, 0.0, float(i), 0, 0) for i in range(4)],
        ]
    )
    found = np.array([0, 0, 0, 0, -1, -1, -1, -1, -1, -1])
    for config, complete in ((TrackingMetricsConfig(hits_min=4), 0.5), (TrackingMetricsConfig(), 0.0)):
        figures = evaluated(events, found, config)
        assert figures["event_ratio"].value == complete
    score = evaluated(events, found, TrackingMetricsConfig(hits_min=4))["track_f1"]
    assert (score.hits, score.false, score.missed) == (1, 0, 1)  # type: ignore[attr-defined]


def test_without_a_limit_no_momenta_are_needed() -> None:
    figures = evaluated(table([(0, 0)]), np.zeros(1, dtype=np.int64), TrackingMetricsConfig(), Detector(name="bmn"))
    assert figures["efficiency"].value == 1 and "efficiency_pt" not in figures


def test_a_limit_on_momentum_needs_momenta() -> None:
    planar = Detector(name="bmn")
    with pytest.raises(DataError, match="these events have no momenta"):
        evaluated(table([(0, 0)]), np.zeros(1, dtype=np.int64), TrackingMetricsConfig(pt_min=1.0), planar)


def test_the_trackml_score_weighs_hits() -> None:
    pairs = [(0, 0), (0, 0), (0, 1), (1, 1), (1, -1), (-1, 0)]
    events = table(pairs)
    events = events.join({"hit_weight": events.ragged("x").share([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])})
    score = evaluated(events, numbered(pairs))["trackml_score"]
    assert score.value == pytest.approx((1 + 2) / (1 + 2 + 3 + 4 + 5))  # 2 of 3 each way; (1, 1) has only half
    assert score.error > 0


def test_every_figure_of_tracks_has_a_value_and_an_error() -> None:
    pairs = [(0, 0)] * 3 + [(1, 1)] * 3 + [(1, -1), (2, 2), (2, 2), (2, 3), (-1, 3), (-1, 3)]
    figures = evaluated(table(pairs), numbered(pairs))
    values = {name: item.value for name, item in figures.items() if item.scalar}
    expected = {"efficiency": 1 / 3, "purity": 1 / 4, "ghost_rate": 3 / 4, "event_ratio": 0, "track_f1": 2 / 7}
    expected |= {"efficiency_50": 1, "purity_50": 3 / 4, "efficiency_75": 2 / 3, "purity_75": 1 / 2}
    assert {name: values[name] for name in expected} == pytest.approx(expected)
    assert all(np.isfinite(item.error) for item in figures.values() if item.scalar)


def test_plots_against_momentum_angle_and_multiplicity_are_drawn() -> None:
    pairs = [(0, 0)] * 3 + [(1, 1)] * 3
    figures = evaluated(table(pairs), numbered(pairs))
    names = {"efficiency_pt", "efficiency_theta", "efficiency_eta", "efficiency_multiplicity", "purity_multiplicity"}
    assert names <= figures.keys()
    assert all(figures[name].figure(name) for name in names)
    assert figures["efficiency_multiplicity"].value == 1


def test_true_momenta_are_used_where_they_are_there() -> None:
    events = table([(0, 0), (0, 0), (1, 1)])
    like = events.ragged("x")
    events = events.join({"px": like.share([3.0, 2, 0]), "py": like.share([4.0, 2, 1]), "pz": like.share([5.0, 9, 0])})
    pt, theta = matching.true_kinematics(events, matching.match(events, np.array([0, 0, 1])).true_of_hit)
    np.testing.assert_allclose(pt, [5, 1])
    np.testing.assert_allclose(theta, [45, 90])


def test_an_event_without_a_true_track_counts_as_complete_and_its_tracks_as_ghosts() -> None:
    figures = evaluated(table([(-1, 0)] * 3), np.zeros(3, dtype=np.int64))
    assert np.isnan(figures["efficiency"].value)
    assert (figures["purity"].value, figures["ghost_rate"].value, figures["event_ratio"].value) == (0, 1, 1)


def helix(radius: float, phi: float, slope: float, track: int) -> list[Hit]:
    """Hits on a circle through the beam line, and on a line in r-z."""
    places = ((r, phi + math.asin(r / (2 * radius))) for r in (80.0, 110.0, 150.0, 200.0))
    return [Hit(r * math.cos(angle), r * math.sin(angle), 5 + slope * r, 0, track) for r, angle in places]


def test_momenta_are_fitted_to_hits() -> None:
    """pT / GeV is 0.3 times the field in T and the radius in m. The noise hit counts for no track."""
    tracks = [*helix(1000, 1.0, 0.5, 0), *helix(-2500, 3.0, -1.0, 1), Hit(1.0, 99.0, 0.0, 0, -1)]
    events = to_table([tracks, helix(400, -2.0, 0.0, 0)])
    pt, theta = matching.fitted_kinematics(events, matching.match(events, -np.ones(13, dtype=int)).true_of_hit, 1.5)
    assert pt == pytest.approx(0.299792458 * 1.5 * np.array([1.0, 2.5, 0.4]), rel=1e-6)
    assert theta == pytest.approx(np.degrees([math.atan2(1, 0.5), math.atan2(1, -1), math.pi / 2]))


def test_a_straight_track_has_a_large_momentum() -> None:
    events = to_table([[Hit(r, 0.0, r, 0, 0) for r in (80.0, 110.0, 150.0)]])
    pt, theta = matching.fitted_kinematics(events, np.zeros(3, dtype=np.int64), 1.0)
    assert pt == pytest.approx([299_792.458]) and theta == pytest.approx([45])


def test_criteria_choose_a_majority() -> None:
    """Three of four hits, and all of three."""
    pairs = [(0, 0)] * 3 + [(0, -1)] + [(1, 1)] * 3 + [(2, 2), (2, 2), (2, 3), (2, 3)]
    match = matching.match(table(pairs), numbered(pairs))
    assert match.by_criterion("exact") is match and match.true_found.tolist() == [False, True, False]
    assert match.by_criterion("75").true_found.tolist() == [True, True, False]
    assert match.by_criterion("50").true_found.tolist() == [True, True, True]
    assert match.by_criterion("50").found_true.tolist() == [True] * 4
    assert match.by_criterion("75").found_true.tolist() == [True, True, False, False]
