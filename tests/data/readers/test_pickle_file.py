"""Pickles: what can be read, and that no code in them is run."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import os
import pickle
import struct
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clew import readers
from clew.data.readers.safe_pickle import load
from clew.data.table import Ragged
from clew.errors import DataError

from . import problem, whole

EVENTS = [np.arange(12.0).reshape(4, 3), np.empty((0, 3)), np.ones((2, 3))]


def write(path: Path, what: Any, protocol: int = 4) -> Path:
    data = pickle.dumps(what, protocol=protocol)
    if path.suffix == ".bz2":
        data = bz2.compress(data)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("name", ["a.pkl", "a.pickle", "a.pkl.bz2", "a.pkl.gz"])
def test_lists_of_arrays_are_ragged_columns(tmp_path: Path, name: str, protocol: int) -> None:
    turned = [np.asfortranarray(each) for each in EVENTS]
    big = [each.astype(">f4") for each in EVENTS]
    path = write(tmp_path / name, {"X": EVENTS, "turned": turned, "big": big, "n": np.arange(3, dtype="i2")}, protocol)
    table = whole(path)
    for column, dtype in (("X", "<f8"), ("turned", "<f8"), ("big", "<f4")):
        ragged = table.ragged(column)
        assert ragged.values.dtype == dtype and ragged.lengths.tolist() == [4, 0, 2]
        np.testing.assert_array_equal(ragged.values, np.concatenate(EVENTS))
    assert table.fixed("n").tolist() == [0, 1, 2] and table.fixed("n").dtype == np.int16
    assert readers.kind_of(str(path)) == "pickle"


def test_other_forms_are_the_same_events(tmp_path: Path) -> None:
    objects = np.empty(3, dtype=object)
    objects[:] = EVENTS
    forms = [
        {"X": EVENTS, "n": [1, 2, 3]},
        {"X": tuple(EVENTS), "n": [np.int64(1), np.int64(2), np.int64(3)]},
        {"X": objects, "n": np.array([1, 2, 3])},
        [{"X": each, "n": place + 1} for place, each in enumerate(EVENTS)],
    ]
    for form in forms:
        table = whole(write(tmp_path / "a.pkl", form))
        assert table.ragged("X").lengths.tolist() == [4, 0, 2] and table.fixed("n").tolist() == [1, 2, 3]


def test_columns_are_chosen_and_pieces_cut(tmp_path: Path) -> None:
    path = write(tmp_path / "a.pkl", {"X": EVENTS, "y": EVENTS})
    parts = readers.read(str(path), columns=["y"], chunk=2)
    assert len(parts) == 2 and list(parts[0]) == ["y"] and isinstance(parts[1]["y"], Ragged)
    assert problem(path, columns=["z"]).startswith("no entry 'z'")


class Evil:
    """Creates a folder if a plain unpickler loads it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


class EvilState:
    """Calls a function through a state."""

    def __reduce__(self) -> Any:
        reduced: Any = np.empty(0).__reduce__()
        function, message, _ = reduced
        return function, message, (1, (1,), eval, False, b"x")


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_a_hostile_pickle_is_refused_in_one_line_and_nothing_is_run(tmp_path: Path, protocol: int) -> None:
    mark = tmp_path / "run"
    for name in ("a.pkl", "a.pkl.bz2"):
        message = problem(write(tmp_path / name, {"X": EVENTS, "more": Evil(mark)}, protocol))
        assert "which event files do not need; nothing of the file was executed" in message and "mkdir" in message
    assert not mark.exists()


@pytest.mark.parametrize(
    "program",
    [
        b"cos\nsystem\n(S'true'\ntR.",
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"(S'true'\nios\nsystem\n.",
        b"(cos\nsystem\nS'true'\no.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
        b"cnumpy\nload\n(S'x'\ntR.",
        b"cnumpy.core.multiarray\nfrombuffer\n.",
        b"cclew.data.readers.safe_pickle\nos\n.",
        b"cnumpy\ndtype.__class__\n.",
        b"\x80\x02\x82\x01.",
        b"Pnobody\n.",
    ],
)
def test_programs_written_by_hand_are_refused(tmp_path: Path, program: bytes) -> None:
    (tmp_path / "a.pkl").write_bytes(program)
    message = problem(tmp_path / "a.pkl")
    assert "nothing of the file was executed" in message or message.startswith("not a readable pickle")


def test_arrays_that_are_not_what_they_say_are_refused(tmp_path: Path) -> None:
    cases: list[tuple[Any, str]] = [
        ({"X": [np.array(["a", "b"])]}, "holds arrays of 'U1', not of numbers"),
        ({"X": [np.zeros(2, dtype=[("a", "f4")])]}, "holds records, not numbers"),
        ({"X": [np.array([None, 1], dtype=object)]}, "entry 'X', event 0: not an array of numbers"),
        ({"X": [np.ones((1, 2)), np.ones((1, 3))]}, "entry 'X': items have shapes (2,), (3,), one was expected"),
        ({"X": ["text"]}, "entry 'X', event 0: not an array of numbers"),
        ({"X": 3}, "entry 'X' is neither an array nor a list of arrays, one per event"),
        ({3: EVENTS}, "not a dict of columns, nor a list of dicts with the same entries, one per event"),
        ([1, 2], "not a dict of columns, nor a list of dicts with the same entries, one per event"),
        ([{"a": 1}, {"b": 1}], "not a dict of columns, nor a list of dicts with the same entries, one per event"),
        ({"X": []}, "no events in it"),
        (OrderedDict(X=EVENTS), "holds 'collections.OrderedDict', which event files do not need"),
    ]
    for what, expected in cases:
        assert problem(write(tmp_path / "a.pkl", what)).startswith(expected)
    assert "which event files do not need" in problem(write(tmp_path / "a.pkl", {"X": [EvilState()]}))


def test_a_forged_array_is_an_error_and_not_memory(tmp_path: Path) -> None:
    """Types and shapes that do not fit the data, as in a forged file."""
    good = pickle.dumps({"X": [np.arange(3, dtype="i8")]}, protocol=2)
    for old, new in ((b"i8", b"O8"), (b"i8", b"V8"), (b"K\x03\x85", b"K\x09\x85")):
        forged = good.replace(old, new)
        assert forged != good
        (tmp_path / "a.pkl").write_bytes(forged)
        assert problem(tmp_path / "a.pkl")


def test_a_few_bytes_cannot_take_all_memory(tmp_path: Path) -> None:
    memo = b"\x80\x02}r" + struct.pack("<I", 2**31 - 1) + b"."
    (tmp_path / "a.pkl").write_bytes(memo)
    assert problem(tmp_path / "a.pkl").startswith("not a dict of columns")


def test_a_truncated_pickle_is_reported(tmp_path: Path) -> None:
    whole_file = bz2.compress(pickle.dumps({"X": EVENTS}))
    (tmp_path / "a.pkl.bz2").write_bytes(whole_file[:-9])
    assert problem(tmp_path / "a.pkl.bz2").startswith("damaged, or cut short")
    stream = io.BytesIO(pickle.dumps({"X": EVENTS}))
    (tmp_path / "a.pkl").write_bytes(stream.getvalue()[:-9])
    assert problem(tmp_path / "a.pkl").startswith("not a readable pickle")


def test_an_array_without_content_is_empty() -> None:
    empty = load(io.BytesIO(b"cnumpy.core.multiarray\n_reconstruct\n(tR."))
    assert empty.value.shape == (0,) and empty.value.dtype == np.float64


@pytest.mark.parametrize("dtype", ["?", "i1", "u8", "f2", "f8", ">i4", "<u2"])
def test_arrays_and_scalars_have_their_values(dtype: str) -> None:
    for protocol in (2, 5):
        values = np.array([[0, 1, 1], [1, 0, 1]], dtype=dtype)
        for array in (values, np.asfortranarray(values), values[:0]):
            loaded = load(io.BytesIO(pickle.dumps(array, protocol=protocol))).value
            assert loaded.dtype == values.dtype.newbyteorder("=") and loaded.tolist() == array.tolist()
        assert load(io.BytesIO(pickle.dumps(values[1, 2], protocol=protocol))) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (np.zeros(2, dtype="c8"), "holds arrays of 'c8', not of numbers"),
        (np.zeros(2, dtype="f16"), "holds arrays of 'f16', not of numbers"),
        (np.zeros(2, dtype="M8[s]"), "holds arrays of 'M8', not of numbers"),
    ],
)
def test_other_types_are_no_numbers(content: Any, message: str) -> None:
    array = load(io.BytesIO(pickle.dumps(content, protocol=2)))
    with pytest.raises(DataError, match=message):
        _ = array.value


@pytest.mark.parametrize("dtype", [np.dtype(("f4", (2,))), np.dtype([("a", "f4")])])
def test_a_type_of_several_numbers_is_refused(dtype: np.dtype[Any]) -> None:
    with pytest.raises(DataError, match="holds records, not numbers"):
        load(io.BytesIO(pickle.dumps(dtype, protocol=2)))


def test_arrays_of_objects_are_lists_if_they_have_one_dimension() -> None:
    objects = np.empty((2, 2), dtype=object)
    flat = load(io.BytesIO(pickle.dumps(objects[0], protocol=2)))
    assert flat.items == [None, None]
    with pytest.raises(DataError, match="not a readable pickle"):
        load(io.BytesIO(pickle.dumps(objects, protocol=2)))


def test_one_pickle_does_not_change_what_the_next_may_call() -> None:
    """A pickle can write to objects that it got, also to functions."""
    program = b"cnumpy\ndtype\n}S'__code__'\nNsb0cnumpy\ndtype\n(S'f8'\ntR."
    with contextlib.suppress(DataError):
        load(io.BytesIO(program))
    assert load(io.BytesIO(pickle.dumps(np.arange(3), protocol=2))).value.tolist() == [0, 1, 2]
