"""Divides the samples of a batch among ranks so that all of them finish at about the same time."""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np
from numpy.typing import NDArray


def divide_by_cost(costs: NDArray[Any], ranks: int) -> NDArray[np.int64]:
    """Return the rank of each sample, so that the sums of costs per rank are as equal as a greedy choice makes them.

    The most expensive sample goes first, and each one goes to the rank with the smallest sum. Samples of equal cost
    keep their order, so the result depends on the arguments only. If there are two samples per rank or more, no rank
    gets a single one: layers such as batch normalisation need two.

    Args:
        costs: The cost of each sample, in any unit, above 0.
        ranks: Number of ranks.

    Example:
        >>> divide_by_cost(np.array([1, 9, 2, 3, 3]), ranks=2).tolist()
        [0, 0, 1, 1, 1]
        >>> divide_by_cost(np.array([5, 5, 5]), ranks=4).tolist()
        [0, 1, 2]
    """
    owners = np.zeros(len(costs), dtype=np.int64)
    loads = [(0.0, rank) for rank in range(ranks)]  # a heap: the rank with the smallest sum first
    values = costs.tolist()
    for sample in np.argsort(-costs, kind="stable").tolist():
        load, rank = loads[0]
        owners[sample] = rank
        heapq.heapreplace(loads, (load + values[sample], rank))
    if len(costs) >= 2 * ranks:
        _fill_single(owners, costs, ranks)
    return owners


def _fill_single(owners: NDArray[np.int64], costs: NDArray[Any], ranks: int) -> None:
    """Give every rank with a single sample the cheapest sample of the rank that has most of them."""
    counts = np.bincount(owners, minlength=ranks)
    for rank in np.flatnonzero(counts < 2):
        source = int(np.argmax(counts))
        samples = np.flatnonzero(owners == source)
        owners[samples[np.argmin(costs[samples])]] = rank
        counts[source] -= 1
        counts[rank] += 1
