"""NumPy archives: fixed arrays, ragged ones by their offsets, nothing pickled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clew import readers
from clew.errors import DataError
from clew.testing import columns_sharing_offsets

from . import lists, problem, public, whole


@pytest.fixture
def write(tmp_path: Path) -> Any:
    """A function that writes arrays to an archive."""

    def to(**arrays: Any) -> Path:
        np.savez(tmp_path / "a.npz", **arrays)
        return tmp_path / "a.npz"

    return to


def test_one_row_is_one_event(write: Any) -> None:
    path = write(run=np.array([1, 2, 3], dtype=">i2"), image=np.zeros((3, 2, 2)))
    table = whole(path, chunk=2, units={"image": "GeV"})
    assert table.schema["run"].dtype == "<i2" and table.schema["image"].shape == (2, 2)
    assert (table.fixed("run").tolist(), table.units) == ([1, 2, 3], {"image": "GeV"})


def test_offsets_of_the_same_name_are_found(write: Any) -> None:
    table = whole(write(x=[1.5, 2.5, 3.5], x_offsets=np.array([0, 2, 2, 3], dtype="i4"), run=[1, 2, 3]), chunk=2)
    assert (list(table), lists(table["x"])) == (["x", "run"], [[1.5, 2.5], [], [3.5]])


def test_offsets_named_in_the_settings_are_shared(write: Any) -> None:
    path = write(x=[1, 2, 3], y=[4, 5, 6], at=np.array([0, 2, 3], dtype="u4"), run=[1, 2])
    table = whole(path, offsets={"x": "at", "y": "at"})
    assert (list(table), lists(table["y"])) == (["x", "y", "run"], [[4, 5], [6]])
    assert columns_sharing_offsets(table) == {frozenset({"x", "y"})}


def test_columns_are_chosen(write: Any) -> None:
    path = write(x=[1, 2, 3], x_offsets=[0, 2, 3], run=[1, 2], odd=[1, 2, 3, 4])
    assert list(whole(path, columns=["run", "x"])) == ["run", "x"]
    assert problem(path).startswith("columns differ in length: x 2, run 2, odd 4")
    assert problem(path, columns=["rum"]) == "no array 'rum'; did you mean 'run'?"
    assert problem(path, offsets={"x": "x_offset"}) == "no array 'x_offset'; did you mean 'x_offsets'?"


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ([0, 2, 4], "offsets must run from 0 to 3, got 0 to 4"),
        ([0, 2, 1, 3], "offsets fall at event 1: 2 to 1"),
        ([0.0, 3.0], "offsets must be a 1-D integer array of events + 1, got float64 (2,)"),
    ],
)
def test_offsets_that_do_not_fit_are_reported(write: Any, offsets: list[float], message: str) -> None:
    assert problem(write(x=[1, 2, 3], x_offsets=offsets)) == f"array 'x' with 'x_offsets': {message}"


def test_objects_are_never_unpickled(write: Any) -> None:
    path = write(x=[1, 2], odd=np.array([{"a": 1}, None], dtype=object))
    assert problem(path).startswith("array 'odd' cannot be read (Object arrays cannot be loaded")
    assert list(whole(path, columns=["x"])) == ["x"]


def test_strings_and_single_values_are_refused_by_name(write: Any) -> None:
    assert problem(write(x=[1, 2], word=["a", "b"])).startswith("'word' holds <U1, not numbers")
    assert problem(write(x=[1, 2], one=3)) == "column 'one' is a single value; a column has one value per event"


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04 and so on", b"some text\n"])
def test_a_file_that_is_not_an_archive_is_reported(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.npz").write_bytes(data)
    assert problem(tmp_path / "a.npz").startswith("not a readable npz archive")


def test_a_single_array_is_no_archive(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(3))
    (tmp_path / "a.npy").rename(tmp_path / "a.npz")
    assert problem(tmp_path / "a.npz").startswith("not a readable npz archive")


def test_the_public_graphs_are_read_with_their_offsets() -> None:
    path = public("tracking/trackml_graphs/trackml_subgraphs_repacked.npz")
    offsets = {"valid_x": "valid_node_off", **dict.fromkeys(("valid_src", "valid_dst", "valid_y"), "valid_edge_off")}
    table = readers.read(str(path), columns=[*offsets, "valid_event"], offsets=offsets)[0]
    assert (len(table), len(table.ragged("valid_x").values), len(table.ragged("valid_y").values)) == (200, 69692, 98579)
    assert columns_sharing_offsets(table) == {frozenset({"valid_x"}), frozenset({"valid_src", "valid_dst", "valid_y"})}
    assert (table.ragged("valid_src").values < table.ragged("valid_x").lengths[table.ragged("valid_src").events]).all()


def test_an_archive_with_a_password_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(3))
    data = bytearray((tmp_path / "a.npz").read_bytes())
    for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(mark) + place] |= 1  # "encrypted"
    (tmp_path / "a.npz").write_bytes(data)
    with pytest.raises(DataError, match="password required"):
        readers.read(str(tmp_path / "a.npz"))[0]
