"""Text: layouts, headers, order, and the messages about wrong lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clew import readers
from clew.data.readers.text import LAYOUTS

from . import lists, problem, public, whole

NAMES = ("event", "x", "station")
TINY = 2e-5
"""20 bytes."""


@pytest.fixture
def write(tmp_path: Path) -> Any:
    """A function that writes text to a file."""

    def to(text: str | bytes, name: str = "events.txt") -> Path:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return to


def test_the_public_cgem_sample_agrees_with_numpy() -> None:
    path = public("tracking/ariadne/cgem_50_events.txt")
    rows = np.loadtxt(path)
    for size in (100, 0.01):
        table = whole(path, layout="bes3", chunk_mb=size)
        assert (len(table), len(table.ragged("x").values)) == (51, 2881)
        assert table.fixed("event").tolist() == np.unique(rows[:, 0]).tolist()
        for column, name in enumerate(LAYOUTS["bes3"].columns[1:], start=1):
            np.testing.assert_array_equal(table.ragged(name).values, rows[:, column])


def test_bes3_columns_are_declared_with_units() -> None:
    declared = readers.find("text")(layout="bes3").declared_schema()  # type: ignore[call-arg]
    assert declared is not None and list(declared) == ["event", "x", "y", "z", "station", "track"]
    assert {name: field.unit for name, field in declared.items() if field.unit} == {"x": "mm", "y": "mm", "z": "mm"}


def test_bmn_has_13_columns_and_counts_stations_through_both_detectors(write: Any) -> None:
    path = write("0 1 2 3 0 5 7 .1 .2 .3 9 8 7\n0 1 2 3 1 2 -1 .1 .2 .3 9 8 7\n")
    table = whole(path, layout="bmn")
    assert len(table.schema) == 13
    assert lists(table["station"]) == [[5, 5]] and lists(table["det"]) == [[0, 1]]
    assert {table.units[name] for name in ("x", "vz")} == {"cm"} and table.units["px"] == "GeV"
    assert table.schema == readers.read(str(path), layout="bmn").reader.declared_schema()


def test_a_header_names_the_columns(write: Any) -> None:
    table = whole(write('"event", "x" ,hits\n1,0.5,2\n'), units={"x": "cm"})
    assert list(table) == ["event", "x", "hits"]
    assert table.units == {"x": "cm"} and table.schema["hits"].dtype == "<f8"


def test_a_header_in_another_order_than_the_layout_is_followed(write: Any) -> None:
    table = whole(write("event,track,station,z,y,x\n1,-1,4,3,2,1\n"), layout="bes3")
    assert list(table) == list(LAYOUTS["bes3"].columns)
    assert [float(table.ragged(name).values[0]) for name in list(table)[1:]] == [1, 2, 3, 4, -1]


def test_a_header_with_other_names_than_the_layout_is_passed_over(write: Any) -> None:
    table = whole(write("evt hit_x hit_y hit_z layer id\n1 2 3 4 5 6\n"), layout="bes3")
    assert lists(table["track"]) == [[6]]


def test_whole_columns_become_integers(write: Any) -> None:
    table = whole(write("1.0 0.5 3e0\n1.0 2 4.\n"), columns=NAMES)
    assert table.schema["station"].dtype == table.schema["event"].dtype == "<i8"
    assert lists(table["station"]) == [[3, 4]]
    assert whole(write("1 2 3\n"), columns=("event", "n", "m"), integers=("m",)).schema["m"].dtype == "<i8"


def test_integers_keep_all_of_64_bits(write: Any) -> None:
    biggest = 2**63 - 1
    table = whole(write(f"{2**53 + 1} 1 {-biggest}\n{biggest} 1 2\n"), columns=NAMES)
    assert table.fixed("event").tolist() == [2**53 + 1, biggest]
    assert lists(table["station"]) == [[-biggest], [2]]


@pytest.mark.parametrize("number", ["99999999999999999999", "1e17", "18014398509481984.0"])
def test_integers_that_floats_cannot_hold_are_refused(write: Any, number: str) -> None:
    message = problem(write(f"# two\n\n1 2.5 3\n{number} 2.5 3\n"), columns=NAMES)
    assert message.startswith(f"line 4: event is {float(number):.17g}, beyond 2^53")


def test_nan_and_infinity_are_numbers_here(write: Any) -> None:
    table = whole(write("1 nan 0\n1 NaN 0\n1 -inf 0\n1 Infinity 0\n"), columns=NAMES)
    np.testing.assert_array_equal(table.ragged("x").values, [np.nan, np.nan, -np.inf, np.inf])


@pytest.mark.parametrize("text", ["7 0.5 1", "7 0.5 1\n", "\n\n7\t0.5  1\r\n", "event x station\n7 0.5 1"])
def test_one_line_is_one_event(write: Any, text: str) -> None:
    table = whole(write(text), columns=NAMES)
    assert (table.fixed("event").tolist(), lists(table["x"])) == ([7], [[0.5]])


@pytest.mark.parametrize("size", [100, TINY, 1e-6])
def test_a_header_alone_is_a_table_without_events(write: Any, size: float) -> None:
    table = whole(write("# nothing yet\nevent,x,station\n"), chunk_mb=size)
    assert len(table) == 0
    assert [field.dtype for field in table.schema.values()] == ["<i8", "<f8", "<i8"]


@pytest.mark.parametrize("text", ["", "\n  \n", "# only this\n", "\ufeff"])
def test_a_file_without_lines_of_data_has_no_events(write: Any, text: str) -> None:
    assert problem(write(text), columns=NAMES) == "no events in it"


def test_an_unsorted_file_of_one_piece_is_sorted(write: Any) -> None:
    table = whole(write("3 0.5 1\n1 1.5 1\n3 2.5 1\n2 3.5 1\n1 4.5 1\n"), columns=NAMES)
    assert table.fixed("event").tolist() == [1, 2, 3]
    assert lists(table["x"]) == [[1.5, 4.5], [3.5], [0.5, 2.5]]


@pytest.mark.parametrize("size", [8, 20, 33, 95])
@pytest.mark.parametrize("order", [(1, 2, 3, 4, 5, 6, 7, 8, 9, 2, 10, 11), (1, 2, 3, 4, 5, 4, 6, 7, 8, 9, 10, 11)])
def test_an_unsorted_file_of_several_pieces_is_refused(write: Any, size: int, order: tuple[int, ...]) -> None:
    path = write("".join(f"{event} 0.5 1\n" for event in order))
    line = next(line for line, event in enumerate(order, start=1) if event < order[line - 2] and line > 1)
    message = problem(path, columns=NAMES, chunk_mb=size / 1e6)
    assert message.startswith(f"line {line}: event {order[line - 1]} comes after a higher number; sort the file")
    assert "chunk_mb" in message and len(whole(path, columns=NAMES)) == 11


WRONG = {
    "1 0.5": "2 columns, expected 3: event x station",
    "1 0.5 1 9": "4 columns, expected 3: event x station",
    "1 word 1": "x is 'word', not a number",
    "one 1 1": "event is 'one', not a number",
    "1 0.5 1.5": "station is 1.5, it must be a whole number",
    "1 0.5 nan": "station is nan, it must be a whole number",
    "inf 0.5 1": "event is inf, it must be a whole number",
    "1 1_000 1": "x is '1_000', not a number",
    "1 0x10 1": "x is '0x10', not a number",
    "1 0.5,5 1": "x is '0.5,5', not a number",
    "event x station": "event is 'event', not a number",
}


@pytest.mark.parametrize("size", [100, 60e-6, TINY, 1e-6])
@pytest.mark.parametrize("bad", WRONG)
def test_a_wrong_line_is_named_in_whatever_piece_it_lies(write: Any, bad: str, size: float) -> None:
    good = "".join(f"1 {number}.5 1  # a hit\n\n" for number in range(5))
    path = write(f"# first\n{good}{bad}\n2 0.5 1\n3 0.5 1\n")
    assert problem(path, columns=NAMES, chunk_mb=size) == f"line 12: {WRONG[bad]}"


@pytest.mark.parametrize(
    ("line", "message"),
    [("1,,2", "x is '', not a number"), ("1, 2 3,2", "x is '2 3', not a number"), ("1,2,3,", "4 columns, expected 3")],
)
def test_fields_between_commas_are_taken_whole(write: Any, line: str, message: str) -> None:
    assert problem(write(f"event,x,station\n0,1,2\n{line}\n")).startswith(f"line 3: {message}")


def test_a_decimal_comma_is_reported(write: Any) -> None:
    assert problem(write("event;x;station\n1;2,5;3\n")) == "line 2: x is '2,5', not a number"


def test_the_first_line_must_name_the_columns_or_have_as_many(write: Any) -> None:
    assert problem(write("# c\n1 2 3\n")).startswith("line 2 is not a header; name the columns")
    assert problem(write("1 2 3\n"), layout="bes3").startswith("line 1: 3 columns, expected 6: event x y z")
    assert problem(write("event x x\n1 2 3\n")).startswith("line 1: two columns have the same name")
    assert problem(write("1 a 3\n"), columns=NAMES) == "line 1: x is 'a', not a number"


def test_the_event_column_must_be_there(write: Any) -> None:
    message = problem(write("evt x station\n1 2 3\n"), event="evnt")
    assert message.startswith("no column 'evnt' with the number of the event; did you mean 'evt'?")
    assert list(whole(write("x evt\n1.5 2\n"), event="evt")) == ["evt", "x"]


def test_a_unit_of_no_column_is_reported(write: Any) -> None:
    assert problem(write("event xy\n1 2\n"), units={"xyz": "mm"}) == "no column 'xyz'; did you mean 'xy'?"


@pytest.mark.parametrize("data", [bytes(range(256)) * 40, b"\x00" * 999, "1 2 3\n".encode("utf-16")])
def test_binary_files_are_refused_with_a_short_message(write: Any, data: bytes) -> None:
    assert len(problem(write(data), columns=NAMES)) < 200


def test_a_file_that_grew_is_read_to_its_new_end(write: Any) -> None:
    read = readers.read(str(write("1 0.5 1\n")), columns=NAMES)
    assert [len(part) for part in read] == [1]
    write("1 0.5 1\n2 0.5 1\n")
    assert [len(part) for part in read] == [2]


@pytest.mark.parametrize("size", [TINY, 1])
def test_a_line_may_be_an_event(write: Any, size: float) -> None:
    rows = "".join(f"{number},{number / 2},{number % 2}\n" for number in range(40))
    table = whole(write(f"# jets\nn,half,odd\n{rows}\n"), event="", chunk_mb=size, integers=["odd"])
    assert list(table) == ["n", "half", "odd"] and table.fixed("half").tolist() == [n / 2 for n in range(40)]
    assert table.fixed("odd").dtype == np.int64 and len(table) == 40


@pytest.mark.parametrize("settings", [{}, {"columns": ["pt", "label"]}])
def test_without_an_event_column_every_line_is_an_event(write: Any, settings: dict[str, Any]) -> None:
    path = write("pt,label\n52.5,1\n20.5,0\n")
    assert whole(path, **settings).fixed("pt").tolist() == [52.5, 20.5]
    schema = readers.read(str(path), **settings)[0].schema
    assert not any(field.ragged for field in schema.values())


def test_a_wrong_line_is_reported_where_one_line_is_one_event(write: Any) -> None:
    assert problem(write("a,b\n1,2\n3\n"), event="") == "line 3: 1 columns, expected 2: a b"
