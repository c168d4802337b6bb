"""The contract of every writer: a table written in pieces is read back, and unsupported columns are named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from clew import Ragged, Table, concat, readers
from clew.data import writers
from clew.errors import ConfigError, DataError

ENDINGS = list(writers.WRITERS)


def table(events: int, seed: int = 0) -> Table:
    rng = np.random.default_rng(seed)
    hits = Ragged.from_lengths(rng.normal(size=3 * events), np.full(events, 3) if seed else _uneven(events))
    return Table(
        {
            "event": np.arange(events) + 1000 * seed,
            "passed": rng.random(events) > 0.5,
            "vector": rng.normal(size=(events, 4)).astype(np.float32),
            "x": hits,
            "number": hits.share(rng.integers(0, 100, 3 * events)),
        },
        units={"x": "mm"},
    )


def _uneven(events: int) -> list[int]:
    return [0, 6] * (events // 2) + [3] * (events % 2)


def written(tables: list[Table], path: Path) -> Table:
    with writers.find(path)(path) as writer:
        for each in tables:
            writer.append(each)
    return concat(list(readers.read(str(path))))


@pytest.mark.parametrize("ending", ENDINGS)
def test_pieces_are_read_back_as_one_table(ending: str, tmp_path: Path) -> None:
    pieces = [table(5), table(1, 1), table(40, 2)]
    read_back, whole = written(pieces, tmp_path / f"out{ending}"), concat(pieces)
    for name, column in whole.items():
        other = read_back[name]
        if isinstance(column, Ragged):
            assert isinstance(other, Ragged)
            np.testing.assert_array_equal(other.offsets, column.offsets, name)
            column, other = column.values, other.values
        assert not isinstance(other, Ragged)
        assert other.dtype == column.dtype, name
        np.testing.assert_array_equal(other, column, name)


@pytest.mark.parametrize("ending", ENDINGS)
def test_an_empty_piece_adds_nothing(ending: str, tmp_path: Path) -> None:
    pieces = [table(3), table(3).slice(0, 0), table(3)]
    assert len(written(pieces, tmp_path / f"out{ending}")) == 6


def test_a_table_that_grows_keeps_units_and_shared_items(tmp_path: Path) -> None:
    read_back = written([table(4), table(4, 1)], tmp_path / "out.h5")
    assert read_back.units == {"x": "mm"}
    assert read_back.items_with("x") == ["x", "number"]


def test_units_are_in_the_metadata_of_parquet(tmp_path: Path) -> None:
    from pyarrow import parquet

    written([table(4)], tmp_path / "out.parquet")
    assert parquet.read_schema(tmp_path / "out.parquet").field("x").metadata[b"unit"] == b"mm"
    assert parquet.read_metadata(tmp_path / "out.parquet").num_row_groups == 1


def test_rows_of_a_list_become_branches(tmp_path: Path) -> None:
    edges = Ragged(np.arange(6, dtype=np.int32).reshape(3, 2), [0, 1, 3])
    table = written([Table({"edge": edges, "half": np.ones(2, np.float16)})], tmp_path / "out.root")
    assert table.ragged("edge_1").values.tolist() == [1, 3, 5]
    assert table.fixed("half").dtype == np.float32


def test_a_counter_does_not_take_the_name_of_a_column(tmp_path: Path) -> None:
    lists = Ragged([1.0, 2.0], [0, 0, 2])
    table = written([Table({"x": lists, "nx": [7, 8]})], tmp_path / "out.root")
    assert table.fixed("nx").tolist() == [7, 8]
    assert table.ragged("x").lengths.tolist() == [0, 2]


@pytest.mark.parametrize("ending", ENDINGS)
def test_columns_that_change_are_named(ending: str, tmp_path: Path) -> None:
    with writers.find(f"x{ending}")(tmp_path / "out") as writer:
        writer.append(Table({"a": np.ones(2)}))
        with pytest.raises(DataError, match="column 'a' differs from event to event: f8, later i8"):
            writer.append(Table({"a": np.ones(2, np.int64)}))
        with pytest.raises(DataError, match="columns differ from event to event: a, later b"):
            writer.append(Table({"b": np.ones(2)}))


def test_columns_without_numbers_are_named(tmp_path: Path) -> None:
    with (
        writers.find("x.h5")(tmp_path / "out.h5") as writer,
        pytest.raises(DataError, match="column 'name' holds <U1; only numbers can be written"),
    ):
        writer.append(Table({"name": np.array(["a", "b"])}))


def test_an_unknown_ending_lists_those_that_can_be_written() -> None:
    with pytest.raises(ConfigError, match=r"out\.csv: no writer supports files with this name; choose from \.h5"):
        writers.find("out.csv")


def test_errors_of_the_writing_thread_are_raised(tmp_path: Path) -> None:
    def write() -> None:
        with writers.write_in_background(writers.find("x.h5")(tmp_path / "out.h5")) as append:
            append(Table({"a": [1]}))
            append(Table({"b": [1]}))

    with pytest.raises(DataError, match="differ"):
        write()
