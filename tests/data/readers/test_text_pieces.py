"""Text cut by bytes: for every layout of lines and size of pieces, every event is read exactly once."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clew import readers
from clew.data.table import Ragged, Table, concat
from clew.testing import assert_same_table

NAMES = ("event", "x", "station")
DELIMITERS = ("\t", " ", "   ", " \t", ",", ", ", " ; ")
BETWEEN = ("", "   ", "# a comment", "#", "  # 7 7 7", "\t")
MANY = settings(max_examples=150, deadline=None)


class File(NamedTuple):
    """A random file and the events in it: number, and the x and station of each line."""

    text: str
    events: list[tuple[int, list[tuple[float, int]]]]


NUMBERS = st.floats(-1e6, 1e6) | st.sampled_from([0.0, -1.5e-300, 3e7])
ITEMS = st.lists(st.tuples(NUMBERS, st.integers(-2, 9)), min_size=1, max_size=6)
STEPS = st.lists(st.tuples(st.integers(1, 30), ITEMS), min_size=1, max_size=12)


@st.composite
def files(draw: st.DrawFn) -> File:
    """Lines with one delimiter, optionally with a header, comments, blank lines, surrounding blanks and CRLF."""
    delimiter, end = draw(st.sampled_from(DELIMITERS)), draw(st.sampled_from(["\n", "\r\n"]))
    margin, integer = draw(st.sampled_from(["", "", "  "])), draw(st.sampled_from(["{}", "{}", "{}.0", "{:.3e}"]))
    events, number, lines = [], draw(st.integers(-3, 5)), []
    if draw(st.booleans()):
        lines.append(delimiter.join(NAMES))
    for step, items in draw(STEPS):
        number += step
        events.append((number, items))
        for x, station in items:
            fields = (integer.format(number), repr(x), str(station))
            lines += draw(st.lists(st.sampled_from(BETWEEN), max_size=1) if draw(st.booleans()) else st.just([]))
            lines.append(f"{margin}{delimiter.join(fields)}{margin}")
    return File(end.join(lines) + draw(st.sampled_from(["", end, end + end])), events)


def expected(events: list[tuple[int, list[tuple[float, int]]]]) -> Table:
    x = Ragged.from_lengths([x for _, items in events for x, _ in items], [len(items) for _, items in events])
    station = np.array([station for _, items in events for _, station in items], dtype=np.int64)
    return Table({"event": np.array([number for number, _ in events]), "x": x, "station": x.share(station)})


@pytest.mark.slow
@MANY
@given(files(), st.integers(1, 200) | st.just(10**6))
def test_pieces_of_any_size_hold_every_event_once(
    tmp_path_factory: pytest.TempPathFactory, file: File, size: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "random.txt"
    path.write_bytes(file.text.encode())
    parts = readers.read(str(path), columns=NAMES, chunk_mb=size / 1e6)
    assert len(parts) == -(-len(file.text) // size)
    assert_same_table(concat(list(parts)), expected(file.events))


@pytest.mark.slow
@MANY
@given(st.lists(st.integers(1, 9), min_size=1, max_size=20), st.integers(1, 60))
def test_an_event_belongs_to_the_piece_it_begins_in(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], size: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "even.txt"
    path.write_text("".join(f"{event:3d} 1.5 2\n" * length for event, length in enumerate(lengths)))
    parts = readers.read(str(path), columns=NAMES, chunk_mb=size / 1e6)
    begins = np.cumsum([0, *lengths])[:-1] * len("  0 1.5 2\n")
    for piece, part in zip(parts.plan, parts, strict=True):
        inside = np.flatnonzero((begins >= piece.start) & (begins < piece.stop))
        assert part.fixed("event").tolist() == inside.tolist()


@pytest.mark.parametrize("size", [1, 7, 100, 10**4])
def test_an_event_much_longer_than_a_piece_stays_whole(tmp_path: Path, size: int) -> None:
    (tmp_path / "long.txt").write_text("1 0.5 0\n" + "2 0.5 1\n" * 300 + "3 0.5 2\n")
    parts = list(readers.read(str(tmp_path / "long.txt"), columns=NAMES, chunk_mb=size / 1e6))
    assert [len(event) for part in parts for event in part.ragged("x")] == [1, 300, 1]


def test_a_piece_in_which_no_event_starts_is_an_empty_table_with_the_same_columns(tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("2 0.5 1\n" * 9)
    first, *rest = readers.read(str(tmp_path / "long.txt"), columns=NAMES, chunk_mb=2e-5)
    assert [len(part) for part in rest] == [0, 0, 0]
    assert all(part.schema == first.schema for part in rest)


def test_the_same_number_written_in_two_ways_is_one_event(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("1 0.5 1\n1.0 0.5 1\n01 0.5 1\n1e0 .5 1\n2 0.5 1\n")
    for size in range(1, 40):
        parts = list(readers.read(str(tmp_path / "a.txt"), columns=NAMES, chunk_mb=size / 1e6))
        assert concat(parts).ragged("x").lengths.tolist() == [4, 1]


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbf1 0.5 1\n1 0.5 1\n2 0.5 1\n")
    (tmp_path / "b.csv").write_bytes(b"\xef\xbb\xbfevent,x,station\n1,0.5,1\n1,0.5,1\n2,0.5,1\n")
    for size in (1, 3, 10, 1000):
        for name, columns in (("a.txt", NAMES), ("b.csv", ())):
            parts = list(readers.read(str(tmp_path / name), columns=columns, chunk_mb=size / 1e6))
            assert concat(parts).fixed("event").tolist() == [1, 2]


def test_a_comment_block_longer_than_any_buffer_is_passed(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(
        "# word\n" * 20_000 + "event x station\n1 0.5 1\n" + "# word\n" * 2000 + "1 2.5 1\n"
    )
    parts = list(readers.read(str(tmp_path / "a.txt"), chunk_mb=0.01))
    assert concat(parts).ragged("x").lengths.tolist() == [2]


@pytest.mark.parametrize("size", [4000, 6100, 9000])
def test_the_end_of_a_long_line_is_no_event(tmp_path: Path, size: int) -> None:
    """The event before a piece is looked for backwards; a comment of more than 4 KiB reads like data from within."""
    comment = " # " + "7 7 7 " * 1000
    (tmp_path / "a.txt").write_text(f"1 0.5 1{comment}\n1 1.5 1{comment}\n1 2.5 1\n2 0.5 1\n")
    parts = list(readers.read(str(tmp_path / "a.txt"), columns=NAMES, chunk_mb=size / 1e6))
    assert concat(parts).fixed("event").tolist() == [1, 2]
    assert concat(parts).ragged("x").lengths.tolist() == [3, 1]
