"""Parquet: numbers, lists, row groups, and types that a table cannot hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clew import readers
from clew.testing import columns_sharing_offsets

from . import lists, problem, public, whole


@pytest.fixture
def write(tmp_path: Path) -> Any:
    """A function that writes columns to a file."""

    def to(columns: dict[str, Any], rows: int = 1000) -> Path:
        pq.write_table(pa.table(columns), tmp_path / "a.parquet", row_group_size=rows)
        return tmp_path / "a.parquet"

    return to


def test_numbers_and_lists_become_columns(write: Any) -> None:
    table = whole(
        write(
            {
                "run": np.arange(3, dtype="u2"),
                "good": [True, False, True],
                "list": pa.array([[1.5], [], [2.5, 3.5]], pa.list_(pa.float32())),
                "large": pa.array([[1], [2], []], pa.large_list(pa.int8())),
                "fixed": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int32(), 2)),
                "half": pa.array([1, 2, 3], pa.float16()),
            }
        ),
        units={"run": "1"},
    )
    assert [field.dtype for field in table.schema.values()] == ["<u2", "|b1", "<f4", "|i1", "<i4", "<f2"]
    assert lists(table["list"]) == [[1.5], [], [2.5, 3.5]] and lists(table["large"]) == [[1], [2], []]
    assert table.fixed("fixed").tolist() == [[1, 2], [3, 4], [5, 6]] and table.units == {"run": "1"}


def test_lists_of_arrays_keep_their_dimensions(write: Any) -> None:
    pair = pa.list_(pa.float32(), 2)
    path = write(
        {
            "points": pa.array([[[1, 2]], [], [[3, 4], [5, 6]]], pa.list_(pair)),
            "grid": pa.array([[[1, 2], [3, 4]]] * 3, pa.list_(pair, 2)),
        }
    )
    table = whole(path, chunk=2)
    assert lists(table["points"]) == [[[1, 2]], [], [[3, 4], [5, 6]]]
    assert table.fixed("grid").shape == (3, 2, 2) and table.schema["points"].shape == (2,)


def test_an_empty_entry_in_an_array_of_a_list_is_reported(write: Any) -> None:
    path = write({"points": pa.array([[], [[1, 2], [3, None]]], pa.list_(pa.list_(pa.float32(), 2)))})
    assert problem(path) == "column 'points' has 1 empty entries in its lists, first in event 1"


@pytest.mark.parametrize("rows", [1, 3, 4, 7, 100])
@pytest.mark.parametrize("chunk", [1, 3, 5, 6, 100])
def test_pieces_go_across_row_groups(write: Any, rows: int, chunk: int) -> None:
    values = [list(range(event, event + event % 4)) for event in range(20)]
    parts = list(readers.read(str(write({"n": np.arange(20), "v": values}, rows)), chunk=chunk))
    assert [len(part) for part in parts[:-1]] == [chunk] * (len(parts) - 1)
    assert [event for part in parts for event in lists(part["v"])] == values
    assert [n for part in parts for n in part.fixed("n").tolist()] == list(range(20))


def test_a_piece_inside_a_large_row_group_is_found(write: Any) -> None:
    path = write({"n": np.arange(30_000), "v": pa.array([[n] * (n % 3) for n in range(30_000)])}, 20_000)
    part = readers.read(str(path), chunk=4500)[4]
    assert part.fixed("n").tolist() == list(range(18_000, 22_500))
    assert lists(part["v"])[-1] == [22_499] * 2


def test_unsupported_columns_are_left_out_or_refused_by_name(write: Any) -> None:
    path = write(
        {
            "n": [1, 2],
            "word": ["a", "b"],
            "kind": pa.array(["a", "b"]).dictionary_encode(),
            "nested": [[[1], [2]], [[3]]],
            "words": [["a"], ["b"]],
            "record": [{"a": 1}, {"a": 2}],
        }
    )
    assert list(whole(path)) == ["n"]
    for name in ("word", "kind", "nested", "words", "record"):
        message = problem(path, columns=[name])
        assert message.startswith(f"column '{name}' holds ") and message.endswith(
            "only numbers and lists of numbers can be read"
        )


def test_columns_are_chosen_in_any_order(write: Any) -> None:
    path = write({"a": [1], "bee": [2], "c": [3]})
    assert list(whole(path, columns=["c", "a"])) == ["c", "a"]
    assert problem(path, columns=["bea"]) == "no column 'bea'; did you mean 'bee'?"
    assert problem(path, units={"bea": "mm"}) == "no column 'bea'; did you mean 'bee'?"


@pytest.mark.parametrize("chunk", [2, 100])
def test_empty_entries_are_refused_with_their_event(write: Any, chunk: int) -> None:
    path = write({"n": [1, 2, 3, None, 5], "v": [[1], [2], [3], [], [4, None]], "w": [[1], None, [], [], []]}, 3)
    for name, message in {
        "n": "column 'n' has 1 empty entries, first in event 3",
        "w": "column 'w' has 1 empty entries, first in event 1",
        "v": "column 'v' has 1 empty entries in its lists, first in event 4",
    }.items():
        assert problem(path, columns=[name], chunk=chunk) == message


def test_an_empty_entry_in_another_piece_does_no_harm(write: Any) -> None:
    parts = readers.read(str(write({"v": [[1], [2], [None], [3]]})), chunk=2)
    assert lists(parts[0]["v"]) == [[1], [2]]


def test_lists_of_the_same_items_share_their_offsets(write: Any) -> None:
    same, other = [[1], [2, 3], []], [[1], [2, 3], [4]]
    path = write({"a": same, "b": same, "c": other})
    for chunk in (2, 100):
        parts = readers.read(str(path), chunk=chunk)
        assert all(columns_sharing_offsets(part) == {frozenset({"a", "b"}), frozenset({"c"})} for part in parts)


def test_a_file_without_numbers_or_events_is_reported(write: Any) -> None:
    assert problem(write({"word": ["a"]})) == "no column of numbers in it"
    assert problem(write({"n": pa.array([], pa.int64())})) == "no events in it"


def test_the_public_jets_are_read() -> None:
    path = public("jets/sophon/JetClassII_example.parquet")
    table = whole(path, chunk=30)
    assert (len(table), len(table.schema)) == (100, 54)
    reference = pq.read_table(path)
    assert table.fixed("jet_pt").tolist() == reference["jet_pt"].to_pylist()
    assert lists(table["part_px"]) == reference["part_px"].to_pylist()
    assert {len(names) for names in columns_sharing_offsets(whole(path))} == {10, 11, 16}
