"""Tables as tensors: concatenated, pointers counted through the whole batch, nothing padded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from clew import Dataset, Ragged, Table
from clew.data.dataset.batch import Batch, cut_batches, to_batch
from clew.errors import DataError
from clew.recipes.tracking import Tracking


@pytest.fixture
def table() -> Table:
    """Three events with 2, 0 and 3 nodes; edges point at nodes, marks at edges."""
    node = Ragged.from_lists([[[0.0, 1.0], [2.0, 3.0]], np.empty((0, 2)), [[4.0, 5.0], [6.0, 7.0], [8.0, 9.0]]])
    edge = Ragged.from_lists([[[0, 1]], np.empty((0, 2)), [[0, 2], [1, 2]]], dtype=np.int32)
    mark = Ragged.from_lists([[0], [], [1]], dtype=np.int16)
    return Table(
        {"node": node, "edge": edge, "mark": mark, "e": [1.5, 2, 3]}, index_of={"edge": "node", "mark": "edge"}
    )


def test_pointers_count_through_the_whole_batch(table: Table) -> None:
    batch = to_batch(table)
    assert batch["edge"].tolist() == [[0, 1], [2, 4], [3, 4]]
    assert batch["mark"].tolist() == [0, 2]
    assert batch["edge"].dtype == batch["mark"].dtype == torch.int64


def test_pointers_of_chosen_events_lead_to_the_same_items(table: Table) -> None:
    batch = to_batch(table.take([2, 2, 0]))
    joined = batch["node"][batch["edge"][:, 0]]
    assert joined.tolist() == [[4, 5], [6, 7], [4, 5], [6, 7], [0, 1]]


def test_ragged_columns_keep_their_offsets(table: Table) -> None:
    nodes = to_batch(table).ragged("node")
    assert nodes.offsets.tolist() == [0, 2, 2, 5]
    assert nodes.lengths.tolist() == [2, 0, 3]
    assert nodes.events.tolist() == [0, 0, 2, 2, 2]
    assert nodes.values.shape == (5, 2)


def test_fixed_columns_are_tensors_of_their_type(table: Table) -> None:
    batch = to_batch(table.join({"n": np.array([1, 2, 3], dtype=np.uint8)}))
    assert batch.size == 3
    assert batch["e"].tolist() == [1.5, 2, 3]
    assert batch["n"].dtype == torch.uint8


def test_only_the_requested_columns_become_tensors(table: Table) -> None:
    batch = to_batch(table, ["edge"])
    assert list(batch.columns) == ["edge"]
    assert batch["edge"].tolist() == [[0, 1], [2, 4], [3, 4]]


def test_weights_are_always_included(table: Table) -> None:
    assert to_batch(table).weights is None
    weights = to_batch(table.join({"weight": [1.0, -2.0, 0.5]}), ["e"]).weights
    assert weights is not None
    assert weights.dtype == torch.float32
    assert weights.tolist() == [1.0, -2.0, 0.5]


def test_a_batch_moves_with_everything_in_it(table: Table) -> None:
    moved = to_batch(table.join({"weight": np.ones(3)})).to(torch.device("meta"))
    assert moved.size == 3
    assert moved.weights is not None
    tensors = [moved["e"], moved["node"], moved.ragged("node").offsets, moved.weights]
    assert {tensor.device.type for tensor in tensors} == {"meta"}


def test_a_missing_column_names_those_there_are(table: Table) -> None:
    with pytest.raises(DataError, match=r"no column 'label', only node, edge, mark, e; see Recipe\.columns"):
        to_batch(table)["label"]
    with pytest.raises(DataError, match="no column 'label'"):
        to_batch(table, ["label"])


def test_a_fixed_column_has_no_offsets(table: Table) -> None:
    with pytest.raises(DataError, match="column 'e' of the batch is not ragged"):
        to_batch(table).ragged("e")


def test_no_events_make_an_empty_batch(table: Table) -> None:
    batch = to_batch(table.take([]))
    assert batch.size == 0
    assert batch["edge"].shape == (0, 2)
    assert batch.ragged("node").offsets.tolist() == [0]


@pytest.mark.slow
def test_a_real_batch_gives_what_its_events_give_alone(dataset: Dataset) -> None:
    samples, model = dataset.read("val").slice(0, 5), Tracking().model().eval()
    with torch.no_grad():
        whole = model(to_batch(samples, Tracking.columns))
        alone = [model(to_batch(samples.slice(i, i + 1), Tracking.columns)) for i in range(5)]
    torch.testing.assert_close(whole, torch.cat(alone), rtol=1e-4, atol=1e-5)
    assert isinstance(to_batch(samples), Batch)


@pytest.mark.parametrize("pointers", [False, True])
@pytest.mark.parametrize("size", [1, 3, 10])
def test_a_table_cut_into_batches_is_its_slices(size: int, pointers: bool) -> None:
    x = Ragged.from_lists([[1.0, 2.0], [], [3.0], [4.0, 5.0, 6.0], [7.0], [], [8.0]])
    columns: dict[str, Any] = {"x": x, "y": x.share(-x.values), "n": np.arange(7), "weight": np.arange(7) / 2}
    link = {"link": Ragged.from_lists([[0, 1], [], [0], [2], [], [], []], dtype=np.int64)} if pointers else {}
    table = Table({**columns, **link}, index_of={"link": "x"} if pointers else {})
    batches = cut_batches(table, size)
    assert sum(batch.size for batch in batches) == 7
    for place, batch in enumerate(batches):
        expected = to_batch(table.slice(place * size, (place + 1) * size))
        assert list(batch.columns) == list(expected.columns)
        for name in expected.columns:
            assert torch.equal(batch[name], expected[name])
        assert torch.equal(batch.ragged("x").offsets, expected.ragged("x").offsets)
        assert (
            batch.weights is not None and expected.weights is not None and torch.equal(batch.weights, expected.weights)
        )
