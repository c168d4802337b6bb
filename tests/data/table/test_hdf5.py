"""Tables in HDF5 files: round trips, partial reads, and damaged files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew.core.files import sha256
from clew.data.table import Ragged, Table, hdf5
from clew.errors import DataError
from clew.testing import assert_same_table, columns_sharing_offsets

from . import MANY, tables, tables_and_windows


def memory() -> Any:
    return h5py.File("memory.h5", "w", driver="core", backing_store=False)


def events() -> Table:
    nodes, edges = Ragged([1.0, 2.0, 3.0], [0, 2, 2, 3]), Ragged([[0, 1], [0, 0]], [0, 1, 1, 2])
    columns: dict[str, Any] = {"run": [1, 2, 3], "x": nodes, "y": nodes.share([4, 5, 6]), "edge": edges}
    return Table(columns, units={"x": "mm"}, index_of={"edge": "x"})


@MANY
@given(tables())
def test_what_is_written_is_read(table: Table) -> None:
    with memory() as file:
        hdf5.write(table, file)
        assert_same_table(hdf5.read(file), table)


@MANY
@given(tables_and_windows(), st.data())
def test_a_partial_read_is_a_slice_of_some_columns(cut: tuple[Table, int, int | None], data: st.DataObject) -> None:
    table, start, stop = cut
    names = data.draw(st.lists(st.sampled_from(list(table)), min_size=1, unique=True))
    with memory() as file:
        hdf5.write(table, file)
        assert_same_table(hdf5.read(file, start=start, stop=stop, columns=names), table.slice(start, stop).pick(*names))


def test_a_file_keeps_units_pointers_and_sharing(tmp_path: Path) -> None:
    events().save(tmp_path / "deep" / "events.h5")
    back = Table.load(tmp_path / "deep" / "events.h5")
    assert_same_table(back, events())
    assert (back.units, back.index_of) == ({"x": "mm"}, {"edge": "x"})
    assert columns_sharing_offsets(back) == {frozenset({"x", "y"}), frozenset({"edge"})}


def test_a_file_is_read_in_part(tmp_path: Path) -> None:
    events().save(tmp_path / "events.h5")
    for start, stop in ((0, 1), (1, 2), (1, 3), (2, 3), (2, 2)):
        part = hdf5.load(tmp_path / "events.h5", start=start, stop=stop, columns=["y", "run"])
        assert_same_table(part, events().slice(start, stop).pick("y", "run"))
    assert_same_table(Table.load(tmp_path / "events.h5", columns=["x"]), events().pick("x"))


def test_a_pointer_follows_its_items_when_the_column_it_names_is_not_read(tmp_path: Path) -> None:
    events().save(tmp_path / "events.h5")
    for names in (["edge", "y"], ["edge"]):
        assert_same_table(Table.load(tmp_path / "events.h5", columns=names), events().pick(*names))


def test_the_bytes_depend_on_the_table_alone(tmp_path: Path) -> None:
    for name in ("one.h5", "two.h5"):
        events().save(tmp_path / name)
    assert sha256(tmp_path / "one.h5") == sha256(tmp_path / "two.h5")


def test_offsets_are_stored_once_per_set_of_items() -> None:
    with memory() as file:
        hdf5.write(events(), file)
        assert sorted(file["offsets"]) == ["edge", "x"]


def test_an_unknown_column_suggests_the_nearest(tmp_path: Path) -> None:
    events().save(tmp_path / "events.h5")
    with pytest.raises(DataError, match=r"events\.h5: no column 'rum'; did you mean 'run'"):
        Table.load(tmp_path / "events.h5", columns=["rum"])


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone\.h5: no such file"):
        Table.load(tmp_path / "gone.h5")


def test_a_file_cut_short_is_refused(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole.h5", tmp_path / "cut.h5"
    Table({"x": np.zeros(10_000)}).save(whole)
    cut.write_bytes(whole.read_bytes()[:-5_000])
    with pytest.raises(DataError, match=r"cut\.h5: not a readable HDF5 table"):
        Table.load(cut)


@pytest.mark.parametrize("content", [b"", b"x,y\n1,2\n"])
def test_a_file_that_is_not_hdf5_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "events.h5").write_bytes(content)
    with pytest.raises(DataError, match=r"events\.h5: not a readable HDF5 table") as caught:
        Table.load(tmp_path / "events.h5")
    assert len(str(caught.value).splitlines()) == 1


def test_an_hdf5_file_of_something_else_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = [1, 2, 3]
    with pytest.raises(DataError, match=r"other\.h5: no clew table in it"):
        Table.load(tmp_path / "other.h5")


def test_a_table_with_a_dataset_missing_is_refused(tmp_path: Path) -> None:
    events().save(tmp_path / "events.h5")
    with h5py.File(tmp_path / "events.h5", "a") as file:
        del file["offsets/x"]
    with pytest.raises(DataError, match=r"events\.h5: not a readable HDF5 table"):
        Table.load(tmp_path / "events.h5")


def test_a_failed_save_leaves_the_old_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "events.h5"
    events().save(path)
    with pytest.raises(TypeError):
        Table({"x": np.array([object()])}).save(path)
    assert_same_table(Table.load(path), events())
    assert [item.name for item in tmp_path.iterdir()] == ["events.h5"]
