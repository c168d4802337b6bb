"""Generated events resemble the public sample, and a seed always gives the same events."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from numpy.typing import NDArray

from clew import Table
from clew.errors import ConfigError
from clew.recipes.tracking.simulate_bes3 import Bes3Hits, simulate

EVENTS = 800


@pytest.fixture(scope="module")
def hits() -> Bes3Hits:
    return simulate(EVENTS, seed=11)


def columns(hits: Bes3Hits) -> list[NDArray[np.float64]]:
    return [np.asarray(getattr(hits, field.name), dtype=np.float64) for field in fields(hits)]


def assert_equal(left: Bes3Hits, right: Bes3Hits) -> None:
    for left_column, right_column in zip(columns(left), columns(right), strict=True):
        np.testing.assert_array_equal(left_column, right_column)


def chosen(hits: Bes3Hits, mask: NDArray[np.bool_]) -> Bes3Hits:
    return Bes3Hits(**{field.name: getattr(hits, field.name)[mask] for field in fields(hits)})


def test_a_seed_gives_the_same_events_and_another_seed_others(hits: Bes3Hits) -> None:
    assert_equal(simulate(EVENTS, seed=11), hits)
    assert len(simulate(20, seed=12).x) != len(simulate(20, seed=11).x)


@pytest.mark.parametrize("count", [0, 1, 255, 256, 300])
def test_fewer_events_are_the_first_of_more(hits: Bes3Hits, count: int) -> None:
    assert_equal(simulate(count, seed=11), chosen(hits, hits.event < count))


@pytest.mark.parametrize(("first", "count"), [(3, 10), (250, 20), (256, 256), (300, 400)])
def test_a_range_of_events_can_begin_anywhere(hits: Bes3Hits, first: int, count: int) -> None:
    inside = (hits.event >= first) & (hits.event < first + count)
    assert_equal(simulate(count, seed=11, first_event=first), chosen(hits, inside))


@pytest.mark.parametrize("arguments", [(-1, 0, 0), (1, -1, 0), (1, 0, -1)])
def test_negative_arguments_are_refused(arguments: tuple[int, int, int]) -> None:
    with pytest.raises(ConfigError, match="must be 0 or more"):
        simulate(*arguments)


def test_every_event_has_tracks_with_one_hit_on_each_station(hits: Bes3Hits) -> None:
    true = hits.track >= 0
    assert np.unique(hits.event[true]).tolist() == list(range(EVENTS))
    keys, counts = np.unique(hits.event[true] * 100 + hits.track[true], return_counts=True)
    assert set(counts.tolist()) == {3}
    cells = np.unique((hits.event[true] * 100 + hits.track[true]) * 3 + hits.station[true])
    assert len(cells) == 3 * len(keys)


def test_tracks_are_counted_from_zero_in_each_event(hits: Bes3Hits) -> None:
    last = np.full(EVENTS, -1)
    np.maximum.at(last, hits.event, hits.track)
    tracks = [len(np.unique(hits.track[(hits.event == event) & (hits.track >= 0)])) for event in range(40)]
    assert (last[:40] + 1).tolist() == tracks


def test_most_hits_are_noise_and_most_noise_lies_on_a_true_strip(hits: Bes3Hits) -> None:
    noise = hits.track < 0
    assert 0.70 < noise.mean() < 0.85
    assert on_a_true_strip(hits.event, hits.station, np.arctan2(hits.y, hits.x), noise) > 0.70


def test_the_public_sample_has_its_noise_on_true_strips_too(public: Table) -> None:
    x, y = public.ragged("x"), public.ragged("y")
    station, noise = public.ragged("station").values, public.ragged("track").values < 0
    assert on_a_true_strip(x.events, station, np.arctan2(y.values, x.values), noise) > 0.70


def on_a_true_strip(
    event: NDArray[np.int64], station: NDArray[np.int8], phi: NDArray[np.float64], noise: NDArray[np.bool_]
) -> float:
    """The share of noise hits that have a true hit's phi within 1 mrad."""
    key = (event * 3 + station) * 100.0 + phi
    true = np.append(np.sort(key[~noise]), np.inf)
    place = np.searchsorted(true, key[noise])
    near = np.minimum(np.abs(true[place] - key[noise]), np.abs(true[place - 1] - key[noise]))
    return float((near < 1e-3).mean())


def test_hits_and_tracks_per_event_are_as_in_the_public_sample(hits: Bes3Hits, public: Table) -> None:
    x, track = public.ragged("x"), public.ragged("track")
    public_counts = x.lengths.astype(float), np.array([len(np.unique(t[t >= 0])) for t in track], dtype=float)
    simulated_counts = np.bincount(hits.event).astype(float), np.bincount(hits.event[hits.track >= 0]) / 3
    for a, b in zip(public_counts, simulated_counts, strict=True):
        error = np.hypot(a.std(ddof=1) / len(a) ** 0.5, b.std(ddof=1) / len(b) ** 0.5)
        assert abs(a.mean() - b.mean()) < 4 * error


def test_the_order_of_hits_says_nothing_about_the_truth(hits: Bes3Hits) -> None:
    group = hits.event * 3 + hits.station
    assert (np.diff(group) >= 0).all()
    size = np.bincount(group)[group]
    rank = np.arange(len(group)) - np.searchsorted(group, group)
    place = rank[size > 1] / (size[size > 1] - 1)
    true = hits.track[size > 1] >= 0
    assert abs(place[true].mean() - 0.5) < 4 * place.std() / true.sum() ** 0.5


def test_hits_lie_on_their_station(hits: Bes3Hits) -> None:
    radii = np.array([81.555, 126.055, 166.555])
    np.testing.assert_allclose(np.hypot(hits.x, hits.y), radii[hits.station])
    assert np.abs(hits.z).max() < 423.5


def largest_gap(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """The largest distance between two cumulative distributions (Kolmogorov and Smirnov's)."""
    places = np.concatenate([a, b])
    return float(
        np.abs(np.searchsorted(np.sort(a), places) / len(a) - np.searchsorted(np.sort(b), places) / len(b)).max()
    )


@pytest.mark.parametrize("station", [0, 1, 2])
def test_true_hits_are_spread_in_z_as_in_the_public_sample(hits: Bes3Hits, public: Table, station: int) -> None:
    chosen_public = (public.ragged("station").values == station) & (public.ragged("track").values >= 0)
    public_z = public.ragged("z").values[chosen_public].astype(float)
    simulated_z = hits.z[(hits.station == station) & (hits.track >= 0)]
    # tracks of an event share a vertex only: the 1% limit for independent values, a little widened
    assert largest_gap(public_z, simulated_z) < 1.8 * (1 / len(public_z) + 1 / len(simulated_z)) ** 0.5


@pytest.mark.parametrize("station", [0, 1, 2])
def test_ghosts_are_spread_in_z_as_in_the_public_sample(hits: Bes3Hits, public: Table, station: int) -> None:
    chosen_public = (public.ragged("station").values == station) & (public.ragged("track").values < 0)
    public_z = public.ragged("z").values[chosen_public].astype(float)
    simulated_z = hits.z[(hits.station == station) & (hits.track < 0)]
    # ghosts of one event are correlated: 51 events count, not their 700 hits
    assert largest_gap(public_z, simulated_z) < 1.63 * (1 / 51 + 1 / EVENTS) ** 0.5


def test_as_many_ghosts_share_a_true_phi_as_in_the_public_sample(hits: Bes3Hits, public: Table) -> None:
    x, y = public.ragged("x"), public.ragged("y")
    station, noise = public.ragged("station").values, public.ragged("track").values < 0
    public_share = on_a_true_strip(x.events, station, np.arctan2(y.values, x.values), noise)
    simulated_share = on_a_true_strip(hits.event, hits.station, np.arctan2(hits.y, hits.x), hits.track < 0)
    assert abs(public_share - simulated_share) < 0.1  # 0.806 +- 0.050 in the sample, by event
