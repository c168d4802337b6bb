"""Tables to and from awkward, Arrow, pandas and polars share their values, and keep every number."""

from __future__ import annotations

from typing import Any

import awkward as ak
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from clew import Ragged, Table
from clew.errors import DataError
from clew.testing import assert_same_table


@pytest.fixture
def table() -> Table:
    pt = Ragged(np.array([50.0, 30.0, 20.0], dtype=np.float32), [0, 2, 2, 3])
    return Table(
        {
            "event": np.arange(3),
            "pt": pt,
            "eta": pt.share(np.array([0.1, -2.0, 1.5])),
            "image": np.arange(12, dtype=np.float32).reshape(3, 4),
            "good": np.array([True, False, True]),
        }
    )


def shares(one: Any, other: Any) -> bool:
    """Whether two columns lie in the same memory."""
    first, second = (each.values if isinstance(each, Ragged) else each for each in (one, other))
    return bool(np.shares_memory(first, second))


@pytest.mark.parametrize("kind", ["awkward", "arrow"])
def test_nothing_is_copied_there_and_back(table: Table, kind: str) -> None:
    array = getattr(table, f"to_{kind}")()
    back: Table = getattr(Table, f"from_{kind}")(array)
    assert_same_table(back, table)
    assert back.items_with("pt") == ["pt", "eta"]
    shared = {name for name in table if shares(table[name], back[name])}
    assert shared == set(table) - ({"good"} if kind == "arrow" else set())  # Arrow packs booleans into bits


def test_frames_keep_every_number(table: Table) -> None:
    polars = table.to_polars()
    assert polars.schema["pt"] == pl.List(pl.Float32) and polars["pt"].to_list() == [[50.0, 30.0], [], [20.0]]
    assert_same_table(Table.from_frame(polars), table)
    assert shares(Table.from_frame(polars)["pt"], table["pt"])
    pandas = table.drop("image").to_pandas()
    assert pandas["eta"][0].tolist() == [0.1, -2.0]
    assert_same_table(Table.from_frame(pandas), table.drop("image"))
    assert list(table.pick("image").to_pandas().columns) == [f"image_{number}" for number in range(4)]


def test_text_of_a_frame_is_left_out() -> None:
    columns = {"name": ["a", "b"], "x": [1.0, 2.0], "tags": [["u"], ["v"]]}
    assert list(Table.from_frame(pl.DataFrame(columns))) == ["x"]
    assert list(Table.from_frame(pd.DataFrame({"name": ["a", "b"], "x": [1.0, 2.0]}))) == ["x"]


@pytest.mark.parametrize("values", [[1.0, None], [[1.0], None], [[1.0], [None]]])
def test_empty_entries_are_an_error(values: list[Any]) -> None:
    with pytest.raises(DataError, match=r"field 'x' of type .* is not a table column"):
        Table.from_arrow(pa.table({"x": values}))


def test_records_become_columns_named_like_branches() -> None:
    jets = ak.zip({"pt": ak.Array([[50.0, 30.0], []]), "btag": ak.Array([[1, 0], []])})
    muons = ak.zip({"pt": ak.Array([[7.0, 8.0], []])})
    events = ak.zip({"met": ak.Array([5.0, 6.0]), "Jet": jets, "Muon": muons}, depth_limit=1)
    table = Table.from_awkward(events)
    assert list(table) == ["met", "Jet_pt", "Jet_btag", "Muon_pt"]
    assert table.items_with("Jet_pt") == ["Jet_pt", "Jet_btag"], "equal lengths of two collections are chance"
    assert list(Table.from_awkward(events, columns=["Muon_pt"])) == ["Muon_pt"]
    with pytest.raises(DataError, match="no field 'Jet_pT' in the awkward array; did you mean 'Jet_pt'"):
        Table.from_awkward(events, columns=["Jet_pT"])
