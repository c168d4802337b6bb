"""Batches do not depend on how many ranks share them."""

from __future__ import annotations

from itertools import chain

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from clew.data.dataset.balance import divide_by_cost
from clew.data.dataset.sampler import Sampler

counts = st.integers(0, 200)
sizes = st.integers(1, 64)
some_ranks = st.integers(1, 9)
epochs = st.integers(0, 50)


def batches(sampler: Sampler, epoch: int) -> list[list[int]]:
    return [batch.tolist() for batch in sampler.epoch(epoch)]


@given(counts, sizes, some_ranks, epochs, st.booleans())
def test_the_shares_of_all_ranks_make_the_batches_of_one(n: int, size: int, ranks: int, epoch: int, mix: bool) -> None:
    alone = batches(Sampler(n, size, seed=3, shuffle=mix), epoch)
    shares = [batches(Sampler(n, size, 3, rank, ranks, mix), epoch) for rank in range(ranks)]
    joined = [list(chain(*parts)) for parts in zip(*shares, strict=True)]
    assert joined == alone


@given(counts, sizes, epochs, st.booleans())
def test_every_sample_comes_once_per_epoch(n: int, size: int, epoch: int, mix: bool) -> None:
    dealt = [sample for batch in batches(Sampler(n, size, shuffle=mix), epoch) for sample in batch]
    assert sorted(dealt) == list(range(n))


@given(counts, sizes, some_ranks)
def test_steps_are_the_batches_there_are_on_every_rank(n: int, size: int, ranks: int) -> None:
    steps = {
        (Sampler(n, size, 0, r, ranks).steps(), len(batches(Sampler(n, size, 0, r, ranks), 0))) for r in range(ranks)
    }
    assert steps == {(-(-n // size), -(-n // size))}


@given(counts, sizes)
def test_only_the_last_batch_may_be_smaller(n: int, size: int) -> None:
    lengths = [len(batch) for batch in batches(Sampler(n, size), 0)]
    assert all(length == size for length in lengths[:-1])
    assert all(1 <= length <= size for length in lengths[-1:])


@given(sizes, some_ranks)
def test_shares_of_a_batch_differ_by_one_sample_at_most(size: int, ranks: int) -> None:
    shares = [len(batches(Sampler(size, size, 0, rank, ranks), 0)[0]) for rank in range(ranks)]
    assert max(shares) - min(shares) <= 1


def test_the_order_depends_on_seed_and_epoch() -> None:
    first = Sampler(100, 10, seed=1)
    assert batches(first, 0) == batches(Sampler(100, 10, seed=1), 0)
    assert batches(first, 0) != batches(first, 1)
    assert batches(first, 0) != batches(Sampler(100, 10, seed=2), 0)


def test_without_shuffling_samples_come_in_order() -> None:
    dealt = np.concatenate(list(Sampler(10, 3, shuffle=False).epoch(5)))
    assert dealt.tolist() == list(range(10))


lengths_of = st.lists(st.integers(0, 50), min_size=0, max_size=150).map(
    lambda lengths: np.array(lengths, dtype=np.int64)
)


@given(lengths_of, sizes, some_ranks, epochs, st.none() | st.integers(1, 400))
def test_buckets_distribute_every_sample_once_on_any_number_of_ranks(
    lengths: NDArray[np.int64], size: int, ranks: int, epoch: int, budget: int | None
) -> None:
    n = len(lengths)
    samplers = [Sampler(n, size, 7, r, ranks, lengths=lengths, window=3, budget=budget) for r in range(ranks)]
    shares = [batches(each, epoch) for each in samplers]
    joined = [list(chain(*parts)) for parts in zip(*shares, strict=True)]
    assert joined == [batch.tolist() for batch in samplers[0].batches(epoch)]
    assert sorted(chain(*joined)) == list(range(n))
    assert all(len(batch) <= size for batch in joined)


@given(lengths_of, sizes, st.integers(1, 400))
def test_every_batch_of_more_than_one_sample_stays_within_the_budget(
    lengths: NDArray[np.int64], size: int, budget: int
) -> None:
    for batch in Sampler(len(lengths), size, lengths=lengths, budget=budget).batches(0):
        assert len(batch) == 1 or len(batch) * lengths[batch].max() <= budget


@given(counts, sizes, epochs, st.integers(0, 30))
def test_an_epoch_can_be_resumed_at_any_batch(n: int, size: int, epoch: int, start: int) -> None:
    sampler = Sampler(n, size, seed=5)
    later = [batch.tolist() for batch in sampler.epoch(epoch, start)]
    assert later == batches(sampler, epoch)[start:]


def test_buckets_pad_little_where_random_batches_pad_a_lot() -> None:
    lengths = np.random.default_rng(1).lognormal(3.0, 0.7, 20_000).astype(np.int64) + 1
    padded = {}
    for name, bucket_lengths in (("random", None), ("buckets", lengths)):
        sampled = Sampler(len(lengths), 128, lengths=bucket_lengths).batches(0)
        padded[name] = sum(len(batch) * lengths[batch].max() for batch in sampled) / lengths.sum()
    assert padded["buckets"] < 1.2
    assert padded["random"] > 3


def test_no_seed_and_epoch_repeat_the_order_of_another() -> None:
    """Seed 1 in epoch 0 is not seed 0 in epoch 1."""
    places = [(seed, epoch) for seed in range(6) for epoch in range(6)]
    orders = {tuple(np.concatenate(Sampler(50, 10, seed=seed).batches(epoch))) for seed, epoch in places}
    assert len(orders) == len(places)


costs_of_samples = st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=80)


@given(costs_of_samples, some_ranks, sizes)
def test_shares_by_cost_make_the_batches_of_one_process(costs: list[float], ranks: int, size: int) -> None:
    samplers = [Sampler(len(costs), size, 3, rank, ranks, costs=np.array(costs)) for rank in range(ranks)]
    for batch, *shares in zip(samplers[0].batches(1), *(sampler.epoch(1) for sampler in samplers), strict=True):
        assert sorted(chain(*shares)) == sorted(batch)
        assert all(len(share) >= min(2, len(batch) // ranks) for share in shares)


@given(costs_of_samples, some_ranks)
def test_no_rank_has_more_work_than_the_mean_and_one_sample(costs: list[float], ranks: int) -> None:
    owners = divide_by_cost(np.array(costs), ranks)
    loads = np.bincount(owners, costs, minlength=ranks)
    moved = 0 if len(costs) < 2 * ranks else ranks  # a cheap sample may have been moved to each rank with a single one
    assert loads.max() <= sum(costs) / ranks + max(costs) + moved * np.median(costs)
    assert owners.tolist() == divide_by_cost(np.array(costs), ranks).tolist()


def test_unequal_samples_are_shared_by_cost_and_not_by_number() -> None:
    costs = np.random.default_rng(1).lognormal(0, 1, 256)
    by_cost = np.bincount(divide_by_cost(costs, 8), costs)
    by_number = np.array([share.sum() for share in np.array_split(costs, 8)])
    assert by_cost.max() / by_cost.mean() < 1.01 < by_number.max() / by_number.mean()


@given(st.integers(1, 300), sizes, st.integers(1, 5), epochs, st.booleans(), st.integers(1, 8))
def test_streamed_samples_belong_to_one_rank_each(
    n: int, size: int, ranks: int, epoch: int, mix: bool, window: int
) -> None:
    samplers = [Sampler(n, size, 3, rank, ranks, mix, window=window, streamed=True) for rank in range(ranks)]
    shares = [batches(sampler, epoch) for sampler in samplers]
    whole = [batch.tolist() for batch in samplers[0].batches(epoch)]
    assert [sorted(chain(*parts)) for parts in zip(*shares, strict=True)] == [sorted(batch) for batch in whole]
    assert sorted(chain(*whole)) == list(range(n))


@given(st.integers(1, 5), epochs)
def test_a_rank_reads_the_same_samples_in_every_epoch(ranks: int, epoch: int) -> None:
    for rank in range(ranks):
        sampler = Sampler(2000, 16, 3, rank, ranks, window=8, streamed=True)
        first, later = (sorted(chain(*batches(sampler, number))) for number in (0, epoch))
        assert first == later and len(first) > 2000 / ranks / 2


def test_a_batch_may_fill_its_budget() -> None:
    sampler = Sampler(9, 100, lengths=np.full(9, 10), budget=30)
    assert [len(batch) for batch in sampler.batches(0)] == [3, 3, 3]


def test_neighbours_are_read_by_one_rank_and_a_window_has_two_blocks_of_each_part() -> None:
    sampler = Sampler(100_000, 64, 3, 1, 3, window=30, streamed=True)
    parts = sampler.owned(np.arange(100_000))
    assert 20_000 < parts.sum() < 45_000
    changes = np.flatnonzero(np.diff(parts)) + 1
    assert len(changes) and not (changes % sampler.block).any()
    assert sampler.block * 2 * sampler.owner_count == 64 * 30


def test_buckets_come_in_random_order_only_if_samples_are_shuffled() -> None:
    lengths = np.arange(40)[::-1].copy()
    in_order = Sampler(40, 4, shuffle=False, lengths=lengths).batches(0)
    assert [int(lengths[batch].min()) for batch in in_order] == list(range(0, 40, 4))
    mixed = [int(lengths[batch].min()) for batch in Sampler(40, 4, lengths=lengths).batches(0)]
    assert sorted(mixed) == list(range(0, 40, 4)) != mixed


def test_ranks_with_one_sample_get_the_cheapest_of_those_with_most() -> None:
    """Two expensive samples alone, and six cheap ones: each of the ranks with three gives one away."""
    costs = np.array([100.0, 90, 1, 1, 1, 1, 1, 1])
    assert divide_by_cost(costs, 4).tolist() == [0, 1, 0, 1, 2, 3, 2, 3]
    costs = np.array([100.0, 90, 1, 1, 1, 1, 1, 1, 1])  # four and three: the first gives twice
    assert divide_by_cost(costs, 4).tolist() == [0, 1, 0, 3, 1, 3, 2, 3, 2]
    costs = np.array([9.0, 5, 4, 3, 3, 3])  # one, two and three: those with two keep them
    assert divide_by_cost(costs, 3).tolist() == [0, 1, 2, 0, 1, 2]
    costs = np.array([100.0, 3, 1, 2])
    assert divide_by_cost(costs, 2).tolist() == [0, 1, 0, 1]
    assert divide_by_cost(costs[:3], 2).tolist() == [0, 1, 1], "three samples are too few for two each"


def test_a_small_window_has_blocks_of_one_sample() -> None:
    assert [Sampler(100, size, window=1, streamed=True).block for size in (1, 119, 120, 240)] == [1, 1, 1, 2]
    assert Sampler(100, 1, window=1, ranks=61, streamed=True).owner_count == 61
    assert Sampler(100, 1, window=1, ranks=60, streamed=True).owner_count == 60


def test_steps_depend_on_the_epoch_only_with_a_budget() -> None:
    lengths = np.random.default_rng(1).integers(1, 50, 200)
    budget = Sampler(200, 16, lengths=lengths, budget=300, window=2)
    steps = [budget.steps(epoch) for epoch in range(6)]
    assert steps == [len(budget.batches(epoch)) for epoch in range(6)] and len(set(steps)) > 1
    streamed = Sampler(200, 16, streamed=True, window=2)
    assert streamed.steps(3) == len(streamed.batches(3))


def test_a_window_is_sorted_by_length() -> None:
    """Windows of two batches of four: within each, batches of neighbours in length."""
    lengths = np.random.default_rng(1).permutation(40)
    sampler = Sampler(40, 4, shuffle=False, lengths=lengths, window=2)
    for first, window in zip(range(0, 40, 8), sampler.windows(0), strict=True):
        ordered = sorted(range(first, first + 8), key=lambda sample: int(lengths[sample]))
        assert [batch.tolist() for batch in window] == [ordered[:4], ordered[4:]]


def test_a_window_of_streamed_samples_has_whole_blocks_of_all_parts() -> None:
    sampler = Sampler(5000, 10, window=24, streamed=True, seed=1)
    assert sampler.block == 2
    windows = [np.concatenate(window) for window in sampler.windows(0)]
    assert len(windows) == round(5000 / 240)
    for window in windows:
        assert len(window) % 2 == 0 and set(window // 2 * 2) | set(window // 2 * 2 + 1) == set(window)
        assert len(set(window // 2 % 60)) == 60, "every part has samples in every window"
    plain = [np.concatenate(window) for window in Sampler(5000, 10, window=24, streamed=True, shuffle=False).windows(0)]
    assert all((np.diff(window) > 0).all() for window in plain) and not all((np.diff(w) > 0).all() for w in windows)
