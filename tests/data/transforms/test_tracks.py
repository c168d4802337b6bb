"""Choosing hits by their tracks: every expected hit is written out."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from clew.core.config import to_data
from clew.data.table import Ragged, Table
from clew.data.transforms import DropFakes, DropHoles, DropShort, DropSpinning, LengthBuckets, StationLimits, Transform
from clew.errors import DataError

Hit = tuple[int, int]
HIT = ("station", "track", "z")
Cut = DropShort | DropSpinning | DropHoles
CUTS: list[Cut] = [DropShort(stations=2), DropShort(), DropSpinning(), DropHoles()]


def hits(*events: list[Hit]) -> Table:
    """Events of (station, track) hits; z counts the hits through the table."""
    flat = np.array([hit for event in events for hit in event], dtype=np.int32).reshape(-1, 2)
    station = Ragged.from_lengths(flat[:, 0], [len(event) for event in events])
    columns = {"station": station, "track": station.share(flat[:, 1]), "z": station.share(np.arange(len(flat)) * 1.0)}
    return Table({**columns, "run": np.arange(len(events))}, units={"z": "mm"})


# In event 0, track 1 is short, 2 is whole, 3 spins back to station 0; in event 1, track 2 has a hole at station 1.
FIRST: list[Hit] = [(0, 1), (0, 2), (1, 2), (2, 2), (0, 3), (1, 3), (2, 3), (0, 3), (1, -1)]
SECOND: list[Hit] = [(0, 2), (2, 2), (3, 2), (3, -1)]


def sample() -> Table:
    return hits(FIRST, SECOND, [])


def lists(table: Table, name: str) -> list[Any]:
    return [event.tolist() for event in table.ragged(name)]


def survivors(table: Table) -> set[Hit]:
    """(event, track) of every track that is left."""
    track = table.ragged("track")
    return {(int(e), int(t)) for e, t in zip(track.events, track.values, strict=True) if t != -1}


def rejected(cut: Cut, stations: list[int]) -> bool:
    """The cut's definition, one track at a time."""
    distinct = len(set(stations))
    if isinstance(cut, DropShort):
        return distinct < cut.stations
    if isinstance(cut, DropSpinning):
        return len(stations) > distinct
    return max(stations) - min(stations) + 1 > distinct


@pytest.mark.parametrize(
    ("cut", "noise"),
    [
        (DropShort(), [[-1, 2, 2, 2, 3, 3, 3, 3, -1], [2, 2, 2, -1], []]),
        (DropShort(stations=4), [[-1] * 9, [-1] * 4, []]),
        (DropShort(stations=1), [[1, 2, 2, 2, 3, 3, 3, 3, -1], [2, 2, 2, -1], []]),
        (DropSpinning(), [[1, 2, 2, 2, -1, -1, -1, -1, -1], [2, 2, 2, -1], []]),
        (DropHoles(), [[1, 2, 2, 2, 3, 3, 3, 3, -1], [-1, -1, -1, -1], []]),
    ],
)
def test_hits_of_rejected_tracks_become_noise(cut: Cut, noise: list[list[int]]) -> None:
    result = cut(sample())
    assert lists(result, "track") == noise
    assert lists(result, "station") == lists(sample(), "station")
    assert result.ragged("track").values.dtype == np.int32


@pytest.mark.parametrize(
    ("cut", "z"),
    [
        (DropShort(dropped="remove"), [[1, 2, 3, 4, 5, 6, 7, 8], [9, 10, 11, 12], []]),
        (DropSpinning(dropped="remove"), [[0, 1, 2, 3, 8], [9, 10, 11, 12], []]),
        (DropHoles(dropped="remove"), [[0, 1, 2, 3, 4, 5, 6, 7, 8], [12], []]),
        (DropFakes(), [[0, 1, 2, 3, 4, 5, 6, 7], [9, 10, 11], []]),
    ],
)
def test_hits_of_rejected_tracks_are_removed(cut: Transform, z: list[list[int]]) -> None:
    result = cut(sample())
    assert lists(result, "z") == z
    assert [len(event) for event in lists(result, "track")] == [len(event) for event in z]
    assert result.fixed("run").tolist() == [0, 1, 2]


def test_a_track_of_one_station_hit_twice_spins_and_has_no_hole() -> None:
    table = hits([(4, 0), (4, 0)])
    assert survivors(DropSpinning()(table)) == set()
    assert survivors(DropHoles()(table)) == {(0, 0)}


def test_equal_numbers_in_different_events_are_different_tracks() -> None:
    table = hits([(0, 5), (1, 5)], [(0, 5)])
    assert survivors(DropShort(stations=2)(table)) == {(0, 5)}


@pytest.mark.parametrize("numbers", [(5, -2), (2**62, 2**62 - 8), (-(2**63), 2**63 - 1)])
def test_track_numbers_may_be_any_integers(numbers: tuple[int, int]) -> None:
    station = Ragged([0, 1, 0, 1, 0, 1], [0, 2, 4, 4, 4, 6])
    track = station.share(np.repeat(np.array([numbers[0], numbers[1], numbers[1]], dtype=np.int64), 2))
    table = Table({"station": station, "track": track})
    assert len(survivors(DropSpinning()(table))) == 3


TABLES = st.lists(st.lists(st.tuples(st.integers(-1, 4), st.integers(-1, 3)), max_size=10), max_size=5)


@pytest.mark.parametrize("cut", CUTS)
@settings(max_examples=60, deadline=None)
@given(TABLES)
def test_cuts_follow_their_definition_and_keep_every_event(cut: Cut, events: list[list[Hit]]) -> None:
    table = hits(*events)
    noise, removed = cut(table), cut.model_copy(update={"dropped": "remove"})(table)
    expected = {
        (number, track)
        for number, event in enumerate(events)
        for track in {hit[1] for hit in event} - {-1}
        if not rejected(cut, [hit[0] for hit in event if hit[1] == track])
    }
    assert survivors(noise) == survivors(removed) == expected
    assert len(noise) == len(removed) == len(DropFakes()(table)) == len(events)
    assert lists(DropFakes()(noise), "z") == lists(DropFakes()(removed), "z")


@pytest.mark.parametrize("dropped", ["noise", "remove"])
def test_cuts_leave_the_columns_of_the_hits_sharing_their_offsets(dropped: Literal["noise", "remove"]) -> None:
    result = DropShort(dropped=dropped)(sample())
    assert len({id(result.ragged(name).offsets) for name in HIT}) == 1


LIMITS: dict[int, dict[str, tuple[float, float]]] = {0: {"z": (0.0, 4.0)}, 3: {"z": (11.5, 12.5)}}


def test_hits_outside_the_limits_of_their_station_are_removed() -> None:
    result = StationLimits(limits=LIMITS)(sample())
    assert lists(result, "z") == [[0, 1, 2, 3, 4, 5, 6, 8], [10, 12], []]
    assert len(result) == 3


def test_the_limits_themselves_are_inside() -> None:
    selected = StationLimits(limits={0: {"z": (0.0, 4.0)}, 2: {"z": (3.0, 6.0)}})(hits(FIRST[:-2]))
    assert lists(selected, "z") == [[0, 1, 2, 3, 4, 5, 6]]


def test_a_hit_outside_is_an_error_on_request() -> None:
    limits = StationLimits(limits={3: {"z": (11.5, 12.5)}}, outside="error")
    with pytest.raises(DataError, match="event 1: a hit of station 3 is out of its limits"):
        limits(sample())
    assert lists(limits(hits(FIRST)), "z") == lists(hits(FIRST), "z")


def test_scale_maps_each_station_to_its_own_limits() -> None:
    result = StationLimits(limits=LIMITS, scale=True)(sample())
    assert lists(result, "z") == [[-1.0, -0.5, 2, 3, 1.0, 5, 6, 8], [10, 0.0], []]
    assert result.units["z"] == ""
    assert result.ragged("z").offsets is result.ragged("track").offsets


def test_limits_that_do_not_rise_are_refused() -> None:
    with pytest.raises(ValidationError, match=r"station 0, z: 1\.0 is not below 1\.0"):
        StationLimits(limits={0: {"z": (1.0, 1.0)}})


def test_events_fall_into_buckets_by_their_number_of_hits() -> None:
    table = hits([], [(0, 0)] * 2, [(0, 0)] * 3, [(0, 0)] * 5, [(0, 0)] * 6)
    result = LengthBuckets(edges=(2, 5))(table)
    assert result.fixed("bucket").tolist() == [0, 0, 1, 1, 1]


def test_hits_fall_into_the_bucket_of_their_track() -> None:
    result = LengthBuckets(edges=(1, 3, 4), by="track")(sample())
    assert lists(result, "bucket") == [[0, 1, 1, 1, 2, 2, 2, 2, -1], [1, 1, 1, -1], []]
    assert result.ragged("bucket").offsets is result.ragged("track").offsets


@pytest.mark.parametrize("edges", [(), (3, 2), (2, 2)])
def test_bucket_edges_must_rise(edges: tuple[int, ...]) -> None:
    with pytest.raises(ValidationError, match="bucket edges must rise"):
        LengthBuckets(edges=edges)


@pytest.mark.parametrize("column", ["station", "track"])
def test_a_missing_column_is_named(column: str) -> None:
    with pytest.raises(DataError, match=f"no column '{column}'"):
        DropShort()(sample().drop(column))


@pytest.mark.parametrize(
    "transform",
    [
        *CUTS,
        DropShort(stations=5, dropped="remove"),
        DropFakes(),
        StationLimits(limits=LIMITS, scale=True),
        LengthBuckets(edges=(1, 3), by="track"),
    ],
)
def test_written_out_and_read_back_a_transform_does_the_same(transform: Transform) -> None:
    again = type(transform).model_validate(to_data(transform))
    assert again == transform
    once, twice = transform(sample()), again(sample())
    assert once.schema == twice.schema
    assert all(np.array_equal(np.concatenate(list(once.ragged(n))), np.concatenate(list(twice.ragged(n)))) for n in HIT)


@pytest.mark.parametrize(
    "transform", [*CUTS, DropFakes(), StationLimits(limits=LIMITS), LengthBuckets(edges=(1,), by="track")]
)
@pytest.mark.parametrize("events", [[], [[]], [[(0, -1)], []]])
def test_tables_without_tracks_pass(transform: Transform, events: list[list[Hit]]) -> None:
    assert len(transform(hits(*events))) == len(events)
