"""HDF5: tables of clew and datasets of other programs."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import termios
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import psutil
import pytest

from clew.data import readers
from clew.data.readers.hdf5_check import FileChecker, check_file
from clew.data.table import Ragged, Table
from clew.errors import DataError
from clew.testing import assert_same_table

from . import lists, problem, public, whole


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """Numbers, images, lists, strings, a single value and groups."""
    with h5py.File(tmp_path / "plain.h5", "w") as file:
        file["run"] = np.array([1, 2, 3], dtype=">i4")
        file["deep/inside/image"] = np.arange(12.0).reshape(3, 2, 2)
        hits = file.create_dataset("hits", (3,), h5py.vlen_dtype("f4"))
        hits[:] = np.array([np.array([1.5, 2.5]), np.array([]), np.array([3.5])], dtype=object)
        file["name"] = ["a", "b", "c"]
        file["code"] = np.array([b"a", b"b", b"c"])
        file["version"] = 3
    return tmp_path / "plain.h5"


def table() -> Table:
    x = Ragged([1.0, 2.0, 3.0], [0, 2, 2, 3])
    columns: dict[str, Any] = {"run": [1, 2, 3], "x": x, "y": x.share([4, 5, 6])}
    return Table(columns, units={"x": "mm"})


def test_numbers_and_lists_are_read_and_the_rest_left_out(plain: Path) -> None:
    table = whole(plain, chunk=2)
    assert set(table) == {"run", "image", "hits"}
    assert table.schema["run"].dtype == "<i4" and table.fixed("image").shape == (3, 2, 2)
    assert lists(table["hits"]) == [[1.5, 2.5], [], [3.5]]


def test_datasets_are_chosen_by_path(plain: Path) -> None:
    table = whole(plain, columns=["/deep/inside/image", "run"], units={"run": "1"})
    assert list(table) == ["image", "run"] and table.units == {"run": "1"}


@pytest.mark.parametrize(
    ("name", "held"), [("name", "strings"), ("code", "strings"), ("version", "a single value"), ("deep", "")]
)
def test_only_columns_of_numbers_can_be_chosen(plain: Path, name: str, held: str) -> None:
    message = problem(plain, columns=[name])
    assert (
        message == f"dataset '{name}' holds {held}, not a column of numbers" if held else "no dataset 'deep'" in message
    )


def test_an_unknown_dataset_has_a_nearest(plain: Path) -> None:
    assert problem(plain, columns=["deep/inside/images"]).endswith("did you mean 'deep/inside/image'?")
    assert problem(plain, units={"rum": "1"}) == "no column 'rum'; did you mean 'run'?"


def test_datasets_of_different_lengths_must_be_chosen_from(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["y"] = np.zeros(3), np.zeros(4)
    message = "datasets differ in length: x 3, y 4; choose some with the reader's columns"
    assert problem(tmp_path / "a.h5") == message
    assert len(whole(tmp_path / "a.h5", columns=["y"])) == 4


def test_datasets_of_the_same_name_are_called_by_their_path(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["jet/pt"], file["muon/pt"], file["jet/n"] = np.zeros(3), np.ones(3), np.ones(3)
    assert set(whole(tmp_path / "a.h5")) == {"jet_pt", "muon_pt", "n"}
    assert set(whole(tmp_path / "a.h5", columns=["muon/pt"])) == {"pt"}


def test_a_clew_table_comes_back_with_units_and_sharing(tmp_path: Path) -> None:
    table().save(tmp_path / "t.h5")
    assert_same_table(whole(tmp_path / "t.h5", chunk=2), table())
    assert_same_table(whole(tmp_path / "t.h5", columns=["y", "x"], units={"y": "cm"}).pick("x"), table().pick("x"))
    assert problem(tmp_path / "t.h5", columns=["z"]).startswith("no column 'z'")


@pytest.mark.parametrize("chosen", [[], ["name"]])
def test_a_file_without_numbers_is_reported(tmp_path: Path, chosen: list[str]) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["name"] = ["a"]
    assert "of numbers" in problem(tmp_path / "a.h5", columns=chosen)


def test_a_table_without_events_is_reported(tmp_path: Path) -> None:
    table().slice(0, 0).save(tmp_path / "t.h5")
    assert problem(tmp_path / "t.h5") == "no events in it"


def test_the_public_jet_images_are_read_by_choice() -> None:
    path = public("jets/machine-learning-das/jet_images.h5")
    assert problem(path).startswith("datasets differ in length: QCD 3305, TT 1722")
    images = whole(path, columns=["TT"], chunk=500)
    with h5py.File(path) as file:
        np.testing.assert_array_equal(images.fixed("TT"), file["TT"][:])


def test_a_number_of_events_that_no_file_has_is_refused(tmp_path: Path) -> None:
    Table({"x": np.arange(5)}).save(tmp_path / "a.h5")
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        file.attrs["events"] = 2**60
    with pytest.raises(DataError, match=r"1,152,921,504,606,846,976 events .* the file is damaged"):
        len(readers.read(str(tmp_path / "a.h5")))


@pytest.mark.parametrize("way", ["external storage", "a virtual dataset", "a link", "a link in a table"])
def test_values_of_other_files_are_not_read(way: str, tmp_path: Path) -> None:
    """A file from elsewhere could otherwise bring secrets of the user into a dataset."""
    path, secret = tmp_path / "a.h5", tmp_path / "secret"
    secret.write_bytes(b"the key of the user")
    with h5py.File(tmp_path / "other.h5", "w") as other:
        other["x"] = np.arange(19, dtype="u1")
    if way == "a link in a table":
        table().save(path)
    with h5py.File(path, "a") as file:
        if way == "external storage":
            file.create_dataset("x", (19,), "u1", external=[(str(secret), 0, h5py.h5f.UNLIMITED)])
        elif way == "a virtual dataset":
            layout = h5py.VirtualLayout((19,), "u1")
            layout[:] = h5py.VirtualSource(tmp_path / "other.h5", "x", (19,))
            file.create_virtual_dataset("x", layout)
        else:
            name = "columns/run" if "columns" in file else "x"
            file.pop(name, None)
            file[name] = h5py.ExternalLink("other.h5", "x")
            file["y"] = np.arange(19)
    assert "is in another file, which is not read" in problem(path)


def test_a_dataset_larger_than_any_memory_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("image", (3, 10**6, 10**6), "f4", chunks=(1, 100, 100), compression="gzip")
    assert "dataset 'image' states 1.2e+13 bytes in 0 bytes of the file" in problem(tmp_path / "a.h5")


@pytest.mark.parametrize("size", [0, 2**64 - 16, 2**64 - 32, 2**63])
@pytest.mark.parametrize("place", ["an attribute", "lists"])
def test_a_heap_that_hdf5_would_read_for_ever_is_refused(place: str, size: int, tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    if place == "an attribute":
        table().save(path)
    else:
        with h5py.File(path, "w") as file:
            hits = file.create_dataset("hits", (3,), h5py.vlen_dtype("f4"))
            hits[:] = np.array([np.array([1.5, 2.5]), np.array([]), np.array([3.5])], dtype=object)
    content = bytearray(path.read_bytes())
    first = content.index(b"GCOL") + 16  # the first object: its number, references, size
    content[first : first + 2] = int(size > 0).to_bytes(2, "little")
    content[first + 8 : first + 16] = size.to_bytes(8, "little")
    path.write_bytes(content)
    code = f"from clew.data import readers\nfor each in readers.read({str(path)!r}): print(each)"
    done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, timeout=60)
    assert done.returncode == 1 and "DataError: " in done.stderr and "a damaged heap" in done.stderr, done.stderr


def test_a_file_that_blocks_the_process_that_opens_it_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.h5")
    with closing(FileChecker(seconds=2.0)) as checker, pytest.raises(DataError, match="did not open the file"):
        checker.check(tmp_path / "a.h5")


@pytest.mark.exec
def test_a_file_that_ends_the_process_that_opens_it_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    table().save(path)
    others = set(psutil.Process().children())
    with closing(FileChecker()) as checker, ThreadPoolExecutor() as pool:
        assert checker.check(path) is False
        [helper] = set(psutil.Process().children()) - others
        helper.suspend()
        waiting = pool.submit(checker.check, path)
        while not _waiting_bytes(Path(f"/proc/{helper.pid}/fd/0")):
            pass
        helper.send_signal(signal.SIGSEGV)
        helper.resume()
        with pytest.raises(DataError, match=r"ended the process that opened the file \(SIGSEGV\)"):
            waiting.result(timeout=60)
        assert checker.check(path) is False, "the next file has a new process"


def test_a_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["run"] = np.arange(3)
        file[b"\xff\xff"] = np.arange(3)
    with pytest.raises(DataError, match=r"not a readable HDF5 file .*can't decode byte 0xff"):
        check_file(tmp_path / "a.h5")


def _waiting_bytes(pipe: Path) -> int:
    """How many bytes are in a pipe that its process has not read."""
    with pipe.open("rb", buffering=0) as stream:
        return int.from_bytes(fcntl.ioctl(stream, termios.FIONREAD, bytes(4)), sys.byteorder)
