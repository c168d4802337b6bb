"""Ragged columns: what is accepted, and how events are cut out of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from clew.data.table import Ragged
from clew.data.table.ragged import gather
from clew.errors import DataError


def test_events_are_cut_at_the_offsets() -> None:
    ragged = Ragged([1.0, 2.0, 3.0], [0, 2, 2, 3])
    assert [event.tolist() for event in ragged] == [[1.0, 2.0], [], [3.0]]
    assert ragged.lengths.tolist() == [2, 0, 1]
    assert ragged.events.tolist() == [0, 0, 2]
    assert ragged[-1].tolist() == [3.0]


@pytest.mark.parametrize("event", [3, -4])
def test_an_event_out_of_range_is_an_index_error(event: int) -> None:
    with pytest.raises(IndexError):
        Ragged([1.0, 2.0, 3.0], [0, 2, 2, 3])[event]


@pytest.mark.parametrize(
    ("offsets", "complaint"),
    [
        ([0, 2, 1, 3], "offsets fall at event 1: 2 to 1"),
        ([1, 2, 3], "offsets must run from 0 to 3, got 1 to 3"),
        ([0, 2], "offsets must run from 0 to 3, got 0 to 2"),
        ([0, 4], "offsets must run from 0 to 3, got 0 to 4"),
        ([0.0, 3.0], "1-D integer array of events \\+ 1, got float64"),
        ([False, True], "got bool"),
        ([[0, 3]], "got int64 \\(1, 2\\)"),
        (np.zeros(0, np.int64), "got int64 \\(0,\\)"),
    ],
)
def test_offsets_that_do_not_fit_are_refused(offsets: Any, complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        Ragged([1.0, 2.0, 3.0], offsets)


def test_offsets_of_any_integer_type_become_int64() -> None:
    assert Ragged([1.0], np.array([0, 1], dtype=np.uint8)).offsets.dtype == np.int64


def test_int64_offsets_are_taken_without_a_copy() -> None:
    offsets = np.array([0, 1], dtype=np.int64)
    assert Ragged([1.0], offsets).offsets is offsets


def test_share_keeps_the_offsets_array() -> None:
    ragged = Ragged([1.0, 2.0], [0, 2])
    assert ragged.share([5, 6]).offsets is ragged.offsets
    with pytest.raises(DataError, match="1 values do not fit 2 items"):
        ragged.share([5])


def test_from_lists_joins_one_array_per_event() -> None:
    ragged = Ragged.from_lists([[1, 2], [3]], dtype="int32")
    assert ragged.values.dtype == np.int32
    assert ragged.offsets.tolist() == [0, 2, 3]


def test_an_empty_event_changes_neither_type_nor_shape_of_the_others() -> None:
    flat = Ragged.from_lists([[], [1, 2], []])
    assert flat.values.dtype.kind == "i"
    assert flat.offsets.tolist() == [0, 0, 2, 2]
    assert Ragged.from_lists([[[1, 2]], []]).values.shape == (1, 2)


def test_from_lists_of_nothing_has_no_events() -> None:
    assert len(Ragged.from_lists([])) == 0
    assert Ragged.from_lists([[], []]).lengths.tolist() == [0, 0]


def test_lengths_must_add_up_to_the_values() -> None:
    assert Ragged.from_lengths([1, 2, 3], [1, 0, 2]).offsets.tolist() == [0, 1, 1, 3]
    with pytest.raises(DataError, match="offsets must run from 0 to 3, got 0 to 2"):
        Ragged.from_lengths([1, 2, 3], [1, 1])
    with pytest.raises(DataError, match="offsets fall at event 1"):
        Ragged.from_lengths([1, 2, 3], [4, -1])


def test_gather_finds_the_rows_of_events_in_any_order() -> None:
    rows, offsets = gather(np.array([0, 2, 2, 5]), np.array([2, 0, 1, 2]))
    assert rows.tolist() == [2, 3, 4, 0, 1, 2, 3, 4]
    assert offsets.tolist() == [0, 3, 5, 5, 8]


def test_repr_says_how_much_there_is() -> None:
    assert repr(Ragged([1.0, 2.0], [0, 2, 2])) == "Ragged(2 events, 2 items, float64)"


def test_empty_events_have_the_shape_and_type_of_the_first() -> None:
    made = Ragged.from_lists([np.empty((0, 2), dtype=np.int16), []])
    assert made.values.shape == (0, 2) and made.values.dtype == np.int16 and len(made) == 2


def test_equal_columns_have_equal_repr_and_events() -> None:
    made = Ragged.from_lengths([1.5, 2.5, 3.5], [1, 0, 2])
    assert [event.tolist() for event in made] == [[1.5], [], [2.5, 3.5]] and len(made) == 3
    assert made[0].tolist() == [1.5] and made[-2].tolist() == [] and made[2].tolist() == made[-1].tolist()
    for event in (3, -4):
        with pytest.raises(IndexError):
            _ = made[event]
