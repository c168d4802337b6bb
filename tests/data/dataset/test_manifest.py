"""Datasets on disk: reading them, and the messages for damaged ones."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from clew import Dataset, concat
from clew.data.dataset.manifest import MANIFEST, cache_splits
from clew.errors import DataError
from tests.conftest import EVENTS


def shard(dataset: Dataset, split: str = "val") -> Path:
    """The first file of a split."""
    return dataset.path / dataset.manifest.splits[split][0].file


def test_the_splits_hold_all_events(dataset: Dataset) -> None:
    assert list(dataset.splits) == ["train", "val", "test"]
    assert sum(dataset.splits.values()) == EVENTS
    assert {name: len(dataset.read(name)) for name in dataset.splits} == dataset.splits


def test_a_split_is_read_with_its_schema(dataset: Dataset) -> None:
    table = dataset.read("test")
    assert table.schema == dataset.schema
    assert table.schema["x"].unit == "mm"
    assert table.index_of == {"node_hits": "x", "edge": "node"}


def test_only_the_requested_columns_are_read(dataset: Dataset) -> None:
    table = dataset.read("val", columns=["edge", "node", "label"])
    assert list(table) == ["edge", "node", "label"]
    assert np.array_equal(table.ragged("node").values, dataset.read("val").ragged("node").values)
    with pytest.raises(DataError, match="no column 'nodes'; did you mean 'node'"):
        dataset.read("val", columns=["nodes"])


def test_shards_one_after_the_other_are_the_split(dataset: Dataset) -> None:
    pieces = list(dataset.shards("train"))
    assert sum(map(len, pieces)) == dataset.splits["train"]
    assert np.array_equal(concat(pieces).fixed("event"), dataset.read("train").fixed("event"))


def test_splits_that_are_held_are_read_once(dataset: Dataset) -> None:
    assert dataset.read("val") is not dataset.read("val")
    cache_splits(2)
    try:
        first, columns = dataset.read("val"), list(dataset.schema)[:1]
        assert Dataset(dataset.path).read("val") is first
        assert list(dataset.read("val", columns=columns)) == columns and dataset.read("val") is first
        dataset.read("train"), dataset.read("test")
        assert dataset.read("val") is not first
    finally:
        cache_splits(0)
    assert dataset.read("val") is not dataset.read("val")


def test_an_unknown_split_suggests_the_nearest(dataset: Dataset) -> None:
    with pytest.raises(DataError, match="no split 'tests'; did you mean 'test'"):
        dataset.read("tests")


def test_an_empty_split_says_how_to_fill_it(dataset_copy: Dataset) -> None:
    facts = json.loads((dataset_copy.path / MANIFEST).read_text())
    facts["splits"]["test"] = []
    (dataset_copy.path / MANIFEST).write_text(json.dumps(facts))
    with pytest.raises(DataError, match=r"the split 'test' is empty; set its share with prepare\.split"):
        Dataset(dataset_copy.path).read("test")


def test_whole_data_is_verified_in_silence(dataset: Dataset) -> None:
    dataset.verify()


def test_verify_names_an_altered_shard(dataset_copy: Dataset) -> None:
    path = shard(dataset_copy)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match=rf"{path.name}: shard was changed"):
        dataset_copy.verify()


def test_a_cut_shard_is_named_by_verify_and_by_read(dataset_copy: Dataset) -> None:
    path = shard(dataset_copy)
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(DataError, match=rf"{path.name}: shard was changed or is incomplete"):
        dataset_copy.verify()
    with pytest.raises(DataError, match=rf"{path.name}: not a readable HDF5 table"):
        dataset_copy.read("val")


def test_a_missing_shard_is_named_by_verify_and_by_read(dataset_copy: Dataset) -> None:
    shard(dataset_copy).unlink()
    with pytest.raises(DataError, match=r"val-00000\.h5: shard is missing"):
        dataset_copy.verify()
    with pytest.raises(DataError, match=r"val-00000\.h5: no such file"):
        dataset_copy.read("val")


def test_a_shard_of_another_dataset_is_named_by_read(dataset_copy: Dataset) -> None:
    shutil.copy(shard(dataset_copy, "test"), shard(dataset_copy))
    with pytest.raises(DataError, match=r"val-00000\.h5: 43 events, the manifest says 27"):
        dataset_copy.read("val")


def test_a_damaged_file_is_read_or_named(dataset_copy: Dataset) -> None:
    path, chance = shard(dataset_copy), random.Random(1)
    good, messages = path.read_bytes(), []
    for place in chance.sample(range(2048), 60):
        path.write_bytes(good[:place] + bytes([good[place] ^ 155]) + good[place + 1 :])
        try:
            dataset_copy.read("val")
        except DataError as error:
            messages.append(str(error))
    assert messages
    assert all(path.name in message for message in messages)


def test_a_folder_without_manifest_is_no_dataset(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no dataset there \(no manifest\.json\); .*`clew prepare` makes one"):
        Dataset(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"key": "x"}', "\xff\xfe"])
def test_a_damaged_manifest_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / MANIFEST).write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError, match=r"manifest\.json: not a dataset's manifest"):
        Dataset(tmp_path)


def test_a_manifest_of_a_later_format_is_refused(dataset_copy: Dataset) -> None:
    facts = json.loads((dataset_copy.path / MANIFEST).read_text())
    (dataset_copy.path / MANIFEST).write_text(json.dumps({**facts, "format": 2}))
    with pytest.raises(DataError, match="written by a newer clew"):
        Dataset(dataset_copy.path)


def test_a_file_is_no_dataset(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="not a dataset's manifest"):
        Dataset(tmp_path / "file")
