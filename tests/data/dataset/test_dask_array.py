"""A dataset as an array of dask-awkward."""

from __future__ import annotations

from pathlib import Path

import awkward as ak
import numpy as np
import pytest

import clew
from clew import Dataset, Table
from clew.errors import DataError
from clew.testing import assert_same_table

pytest.importorskip("dask_awkward", reason="dask-awkward is not installed")


class Plain(clew.Recipe):
    """Events as they are."""

    def prepare(self, events: Table) -> Table:
        return events


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    lengths = np.arange(60) % 5
    pt = clew.Ragged.from_lengths(np.arange(lengths.sum(), dtype=np.float32), lengths)
    Table({"event": np.arange(60), "pt": pt, "x": np.ones((60, 2))}).save(tmp_path / "events.h5")
    recipe, source, output = Plain(), str(tmp_path / "events.h5"), str(tmp_path / "dataset")
    return clew.prepare(
        recipe, input=[source], output=output, split={"train": 0.8, "val": 0.2}, workers=1, shard_mb=0.0005
    )


def test_a_partition_is_a_shard_and_the_whole_is_the_split(dataset: Dataset) -> None:
    array = dataset.to_dask("train")
    assert array.npartitions == len(dataset.manifest.splits["train"]) > 1
    assert array.fields == list(dataset.schema)
    assert_same_table(Table.from_awkward(array.compute(scheduler="sync")), dataset.read("train"))
    sums = ak.sum(array.pt * 2, axis=1)
    expected = [2 * float(values.sum()) for values in dataset.read("train").ragged("pt")]
    assert sums.compute(scheduler="threads").tolist() == expected


def test_only_the_columns_that_were_named_are_read(dataset: Dataset) -> None:
    array = dataset.to_dask("val", columns=["pt"])
    assert array.fields == ["pt"] and array.compute(scheduler="sync").fields == ["pt"]
    with pytest.raises(DataError, match="no column 'pT'; choose from event, pt, x"):
        dataset.to_dask("val", columns=["pT"])
    with pytest.raises(DataError, match="no events in the split 'vall'"):
        dataset.to_dask("vall")
