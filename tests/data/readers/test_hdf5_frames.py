"""Data frames of pandas in HDF5: both formats, one frame or several, and what is refused."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from . import problem, whole

pd = pytest.importorskip("pandas")
pytest.importorskip("tables", reason="pandas writes HDF5 with PyTables")

FORMATS: dict[str, dict[str, Any]] = {
    "table": {"format": "table"},
    "fixed": {"format": "fixed"},
    "single columns": {"format": "table", "data_columns": True},
    "one single column": {"format": "table", "data_columns": ["label"]},
    "compressed": {"format": "table", "complib": "zlib", "complevel": 5},
}


def frame() -> Any:
    """Numbers of three dtypes and a text, with an index that counts from 10."""
    columns = {"E_0": np.arange(7, dtype="f4"), "label": np.arange(7) % 2, "E_1": np.arange(7, dtype="f4") * 2}
    return pd.DataFrame({**columns, "good": np.arange(7) > 3}, index=np.arange(10, 17))


@pytest.mark.parametrize("how", FORMATS)
def test_columns_have_the_names_of_the_frame(how: str, tmp_path: Path) -> None:
    frame().to_hdf(tmp_path / "a.h5", key="table", **FORMATS[how])
    table = whole(tmp_path / "a.h5", chunk=3)
    assert set(table) == {"E_0", "E_1", "label", "good"}
    for name in table:
        np.testing.assert_array_equal(table.fixed(name), frame()[name].to_numpy())
    assert table.schema["E_0"].dtype == "<f4" and table.schema["label"].dtype == "<i8"
    assert list(whole(tmp_path / "a.h5", columns=["label", "E_1"])) == ["label", "E_1"]
    assert problem(tmp_path / "a.h5", columns=["E_2"]).startswith("no dataset 'E_2'; did you mean 'E_")


def test_columns_of_several_frames_are_named_by_their_paths(tmp_path: Path) -> None:
    frame().to_hdf(tmp_path / "a.h5", key="jets")
    frame().head(3).to_hdf(tmp_path / "a.h5", key="deep/muons", format="table")
    assert "differ in length" in problem(tmp_path / "a.h5")
    assert whole(tmp_path / "a.h5", columns=["deep/muons/label"]).fixed("label").tolist() == [0, 1, 0]


def test_texts_are_left_out(tmp_path: Path) -> None:
    frame().assign(name="a").to_hdf(tmp_path / "a.h5", key="table", format="table")
    assert "name" not in whole(tmp_path / "a.h5")
    assert "not a column of numbers" in problem(tmp_path / "a.h5", columns=["name"])


def test_a_compression_that_hdf5_lacks_is_named(tmp_path: Path) -> None:
    frame().to_hdf(tmp_path / "a.h5", key="table", format="table", complib="blosc", complevel=5)
    with h5py.File(tmp_path / "a.h5") as file:
        if h5py.h5z.filter_avail(32001):
            pytest.skip(f"blosc is known: {file.filename}")
    assert "is compressed with blosc" in problem(tmp_path / "a.h5") and "ptrepack" in problem(tmp_path / "a.h5")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (pickle.dumps(["E_0"], 0), r"1 names for \(2,\) columns"),
        (pickle.dumps([("a", 1), ("b", 2)], 0), "give them plain names"),
        (b"cos\nsystem\n(S'true'\ntR.", "nothing of the file was executed"),
        (b"(lp0", "not a readable pickle"),
        (pickle.dumps({"E_0": 1}, 0), "no names of columns"),
    ],
)
def test_damaged_names_are_refused(names: bytes, message: str, tmp_path: Path) -> None:
    frame().to_hdf(tmp_path / "a.h5", key="table", format="table")
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        file["table/table"].attrs["values_block_0_kind"] = np.bytes_(names)
    assert re.search(message, problem(tmp_path / "a.h5"))


@pytest.mark.parametrize("part", ["block0_items", "block0_values"])
def test_a_frame_without_a_part_is_refused(part: str, tmp_path: Path) -> None:
    frame().to_hdf(tmp_path / "a.h5", key="table")
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        del file["table"][part]
    assert "the data frame 'table' is damaged" in problem(tmp_path / "a.h5")
