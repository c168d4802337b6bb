"""Samples come out the same from memory, compressed memory and disk, and in the sampler's order."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import blosc2
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clew import Dataset, Ragged, Table
from clew.data.dataset import decompression
from clew.data.dataset.batch import RaggedTensor, to_batch
from clew.data.dataset.batch_builder import BatchBuilder
from clew.data.dataset.decompression import StoredArray
from clew.data.dataset.loader import Loader, prefetch
from clew.data.dataset.manifest import Manifest, Shard
from clew.data.dataset.sample_store import (
    CompressedSamples,
    DiskSamples,
    MemorySamples,
    SampleStorage,
    SampleStore,
    open_store,
)
from clew.data.dataset.sampler import Sampler
from clew.errors import DataError

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """300 samples in three shards of unequal size: a number, an image, items with a pointer into them."""
    folder = tmp_path_factory.mktemp("set")
    rng = np.random.default_rng(0)
    shards, first = [], 0
    for number, events in enumerate((120, 1, 179)):
        lengths = rng.integers(1, 6, events)
        hits = Ragged.from_lengths(rng.normal(size=int(lengths.sum())).astype(np.float32), lengths)
        local = np.concatenate([np.arange(length) for length in lengths])
        table = Table(
            {
                "number": np.arange(first, first + events),
                "image": rng.integers(0, 3, (events, 8, 8)),
                "hit": hits,
                "edge": hits.share(local[::1].astype(np.int32)),
            },
            index_of={"edge": "hit"},
        )
        table.save(folder / f"{number}.h5")
        shards.append(Shard(file=f"{number}.h5", events=events, bytes=0, sha256=""))
        first += events
    schema = {
        name: {"dtype": field.dtype, "shape": list(field.shape), "ragged": field.ragged, "index_of": field.index_of}
        for name, field in table.schema.items()
    }
    nothing = Shard(file="lengths.h5", events=0, bytes=0, sha256="")
    Manifest(
        key="k",
        recipe="r",
        columns=schema,
        splits={"train": tuple(shards)},
        inputs=(),
        settings={},
        transforms=(),
        item_sets={"hit": "hit", "edge": "hit"},
        lengths=nothing,
        statistics={},
        versions={},
    ).save(folder)
    return Dataset(folder)


def store(data: Dataset, keep: SampleStorage, block: int = 7) -> SampleStore:
    return open_store(data, "train", keep=keep, columns=None, block=block)


def same(one: Table, other: Table) -> None:
    assert list(one) == list(other) and one.index_of == other.index_of and len(one) == len(other)
    for name, column in one.items():
        other_column = other[name]
        if isinstance(column, Ragged):
            assert isinstance(other_column, Ragged)
            np.testing.assert_array_equal(column.offsets, other_column.offsets)
            np.testing.assert_array_equal(column.values, other_column.values)
        else:
            np.testing.assert_array_equal(column, np.asarray(other_column))


@pytest.mark.long
@given(
    st.lists(st.integers(0, 299), min_size=1, max_size=40), st.sampled_from(["compressed", "disk"]), st.integers(1, 50)
)
def test_every_store_gives_the_same_samples_in_the_requested_order(
    data: Dataset, numbers: list[int], keep: SampleStorage, block: int
) -> None:
    sample_numbers = np.array(numbers, dtype=np.int64)
    same(store(data, keep, block).read(sample_numbers), store(data, "memory").read(sample_numbers))


@pytest.mark.parametrize("alone", [False, True])
def test_arrays_are_unpacked_into_their_target(alone: bool) -> None:
    rng = np.random.default_rng(1)
    arrays: list[Any] = [
        np.arange(50_000),
        rng.random(3000),
        np.arange(0),
        np.arange(5, dtype=np.int8),
        np.zeros(9000, np.float32),
    ]
    packed = [blosc2.compress2(each, typesize=each.dtype.itemsize) if len(each) > 10 else each for each in arrays]
    held = [StoredArray.of(each, compressed=isinstance(each, bytes)) for each in packed]
    unpacked = [np.full_like(each, 7) for each in arrays]
    target = np.array([each.ctypes.data for each in unpacked])
    jobs = decompression.decompression_tasks(held, target, np.array([each.nbytes for each in arrays]))
    (decompression.decompress_one_by_one if alone else decompression.make_decompressor())(jobs)
    for one, other in zip(unpacked, arrays, strict=True):
        np.testing.assert_array_equal(one, other)


def test_damaged_memory_is_reported() -> None:
    values = np.arange(50_000)
    packed = bytearray(blosc2.compress2(values))
    packed[len(packed) // 2 :] = bytes(len(packed) - len(packed) // 2)
    to = np.empty_like(values)
    jobs = decompression.decompression_tasks(
        [StoredArray.of(bytes(packed), compressed=True)], np.array([to.ctypes.data]), np.array([to.nbytes])
    )
    if decompression.find_library() is None:
        pytest.skip("blosc2 came without its library")
    with pytest.raises(DataError, match="cannot be decompressed"):
        decompression.make_decompressor()(jobs)


def test_compressed_memory_reports_its_ratio_and_speed(data: Dataset) -> None:
    samples = store(data, "compressed")
    assert isinstance(samples, CompressedSamples)
    samples.read(np.arange(300))
    raw = store(data, "memory").facts["bytes"]
    assert samples.facts["raw_bytes"] == raw
    assert samples.facts["bytes"] < raw / 2
    assert samples.facts["read_bytes"] >= raw and samples.facts["read_seconds"] > 0


def test_compressed_memory_holds_only_what_is_requested(data: Dataset) -> None:
    part = open_store(data, "train", keep="compressed", columns=["number"], numbers=np.arange(0, 20), block=10)
    assert part.read(np.array([19, 3])).fixed("number").tolist() == [19, 3]
    with pytest.raises(KeyError):
        part.read(np.array([25]))


@pytest.mark.slow
@pytest.mark.parametrize("keep", ["memory", "compressed", "disk"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_portions_of_all_ranks_hold_every_sample_once(data: Dataset, keep: SampleStorage, ranks: int) -> None:
    all_numbers: list[int] = []
    for rank in range(ranks):
        sampler = Sampler(300, 16, 1, rank, ranks, window=3, streamed=keep != "memory")
        loader = Loader(
            store(data, keep, sampler.block), sampler, ["number"], CPU, parts=2, ahead=2, prefetch_next_epoch=True
        )
        for epoch in (3, 4):
            all_numbers = [] if epoch == 3 and not rank else all_numbers
            for portion in loader.epoch(epoch):
                batch_numbers = [int(n) for part in portion.parts if part.counts for n in part["number"]]
                assert batch_numbers == portion.numbers.tolist()
                all_numbers += batch_numbers if epoch == 4 else []
        loader.close()
    assert sorted(all_numbers) == list(range(300))


@pytest.mark.parametrize("ranks", [1, 3])
def test_large_samples_are_read_batch_by_batch(data: Dataset, ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    windowed = store(data, "compressed")
    monkeypatch.setattr("clew.data.dataset.sample_store.CHUNK_BYTES", 1)
    sampler = Sampler(300, 16, 1, ranks - 1, ranks, window=3, streamed=True)
    alone = store(data, "compressed", sampler.block)
    assert alone.reads_single_samples and not windowed.reads_single_samples
    loader = Loader(alone, sampler, None, CPU, parts=2, ahead=1)
    read: list[tuple[int, int]] = []
    loader.on_read = lambda started, ended: read.append((started, ended))
    portions = list(loader.epoch(1))
    assert [p.numbers.tolist() for p in portions] == [batch_numbers.tolist() for batch_numbers in sampler.epoch(1)]
    assert len(read) == len(portions)
    memory = store(data, "memory")
    for portion in portions:
        for part, numbers in zip(portion.parts, np.array_split(portion.numbers, 2), strict=True):
            assert part.counts == bool(len(numbers))
            expected = to_batch(memory.read(numbers if len(numbers) else np.arange(2)))
            for name in expected.columns:
                assert torch.equal(part[name], expected[name])
    assert [p.numbers.tolist() for p in loader.epoch(1, 2, 4)] == [p.numbers.tolist() for p in portions[2:4]]


@pytest.mark.slow
@pytest.mark.parametrize("keep", ["memory", "disk"])
def test_an_epoch_can_be_resumed_at_any_batch(data: Dataset, keep: SampleStorage) -> None:
    sampler = Sampler(300, 16, 1, window=3, streamed=keep != "memory")
    loader = Loader(store(data, keep), sampler, ["number"], CPU)
    whole = [portion.numbers.tolist() for portion in loader.epoch(2)]
    for start in (0, 1, 5, len(whole) - 1, len(whole)):
        assert [portion.numbers.tolist() for portion in loader.epoch(2, start)] == whole[start:]


@given(st.integers(1, 500), st.integers(1, 40), st.integers(1, 7), st.integers(0, 3), st.booleans())
def test_streamed_batches_do_not_depend_on_the_number_of_ranks(
    n: int, size: int, ranks: int, epoch: int, mix: bool
) -> None:
    samplers = [Sampler(n, size, 5, rank, ranks, mix, window=4, streamed=True) for rank in range(ranks)]
    alone = Sampler(n, size, 5, shuffle=mix, window=4, streamed=True).batches(epoch)
    shares = [list(each.epoch(epoch)) for each in samplers]
    assert [sorted(batch) for batch in alone] == [sorted(np.concatenate(parts)) for parts in zip(*shares, strict=True)]
    assert sorted(np.concatenate(alone)) == list(range(n))
    assert all(
        set(samplers[rank].epoch(epoch + 1).__next__()) <= set(np.flatnonzero(samplers[rank].owned(np.arange(n))))
        for rank in range(ranks)
    )


def test_a_prefetch_thread_ends_with_its_consumer() -> None:
    items = prefetch((number for number in range(10**9)), 2)
    assert [next(items) for _ in range(3)] == [0, 1, 2]
    items.close()
    assert not [each for each in threading.enumerate() if each.name == "loader"]


def test_an_error_in_the_thread_is_raised_where_items_are_taken() -> None:
    def broken() -> Generator[int, None, None]:
        yield 1
        raise ValueError("boom on purpose")

    items = prefetch(broken(), 2)
    assert next(items) == 1
    with pytest.raises(ValueError, match="boom on purpose"):
        next(items)


def test_a_missing_shard_is_named(data: Dataset, tmp_path: Path) -> None:
    copy = shutil.copytree(data.path, tmp_path / "copy")
    samples = DiskSamples(Dataset(copy), "train", None)
    for shard in copy.rglob("0.h5"):
        shard.unlink()
    with pytest.raises(Exception, match=r"0\.h5: no such file"):
        samples.read(np.array([0]))


def test_padding_has_a_mask_and_comes_off_again() -> None:
    column = Ragged.from_lists([[1.0, 2.0], [], [3.0, 4.0, 5.0]])
    ragged = to_batch(Table({"x": column})).ragged("x")
    rectangle, mask = ragged.padded(fill=-1)
    assert rectangle.tolist() == [[1, 2, -1], [-1, -1, -1], [3, 4, 5]]
    assert torch.equal(rectangle[mask], ragged.values)
    empty, none = RaggedTensor(torch.zeros(0), torch.zeros(1, dtype=torch.int64)).padded()
    assert empty.shape == none.shape == (0, 0)


def test_memory_is_a_table() -> None:
    assert len(MemorySamples(Table({"x": np.arange(5)}))) == 5


@given(st.lists(st.lists(st.integers(0, 299), min_size=1, max_size=40), min_size=1, max_size=4))
def test_batches_by_number_are_batches_of_the_events_taken(data: Dataset, lists: list[list[int]]) -> None:
    table, number_lists = data.read("train"), [np.array(numbers, dtype=np.int64) for numbers in lists]
    for numbers, quick in zip(number_lists, BatchBuilder(table).batches(number_lists), strict=True):
        slow = to_batch(table.take(numbers))
        assert list(quick.columns) == list(slow.columns) and quick.size == slow.size
        for name, column in quick.columns.items():
            assert torch.equal(quick[name], slow[name]) and quick[name].dtype == slow[name].dtype
            assert not quick[name].is_floating_point() or quick[name].data_ptr() % 64 == 0
            if isinstance(column, RaggedTensor):
                assert torch.equal(column.offsets, slow.ragged(name).offsets)
