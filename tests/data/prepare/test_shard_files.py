"""Shards have the same bytes whether one process writes a shard or all processes write to all shards."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clew
from clew import Ragged, Recipe, Table
from tests.data.prepare.conftest import fingerprint


class Elsewhere(Executor):
    """An executor whose workers may be on other hosts, as far as clew knows."""

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(work(*arguments, **options))
        return future


class Plain(Recipe):
    def prepare(self, events: Table) -> Table:
        return events

    def model(self) -> Any:
        raise AssertionError("only prepared here")


def _values(table: Table, name: str) -> Any:
    column = table[name]
    return column.values if isinstance(column, Ragged) else column


def _events(number: int, *, items: int, dtype: Any = np.float32) -> Table:
    """Forty events with two sets of items, and with columns of all kinds."""
    rng = np.random.default_rng(number)
    hit = Ragged.from_lengths(rng.normal(size=(40 * items, 3)), np.full(40, items))
    lengths = rng.integers(0, 4, 40)
    edge = Ragged.from_lengths(rng.integers(0, 9, lengths.sum()).astype(np.int16), lengths)
    columns: dict[str, Any] = {
        "number": np.arange(40) + 40 * number,
        "passed": rng.random(40) < 0.5,
        "image": rng.normal(size=(40, 2, 3)).astype(dtype),
        "hit": hit,
        "layer": hit.share(rng.integers(0, 9, 40 * items)),
        "edge": edge,
        "half": edge.share(rng.normal(size=lengths.sum()).astype(np.float16)),
        "nothing": Ragged.from_lengths(np.empty(0), np.zeros(40, int)),
    }
    return Table(columns, units={"hit": "mm"})


def _prepare(folder: Path, name: str, executor: Executor | str, workers: int) -> clew.Dataset:
    options: dict[str, Any] = {"cache": str(folder / f"cache-{name}"), "workers": workers, "shard_mb": 0.01}
    return clew.prepare(
        Plain, input=[str(folder / "*.h5")], output=str(folder / name), executor=executor, split_by="event", **options
    )


@pytest.mark.parametrize("dtypes", [(np.float32, np.float32), (np.float32, np.float64)], ids=["same", "mixed"])
def test_all_ways_to_write_shards_give_the_same_bytes(tmp_path: Path, dtypes: tuple[Any, Any]) -> None:
    tables = [_events(number, items=6 * (number == 2), dtype=dtypes[number % 2]) for number in range(5)]
    for number, table in enumerate(tables):
        table.save(tmp_path / f"{number}.h5")
    one = _prepare(tmp_path, "one", "processes", workers=1)
    threads = _prepare(tmp_path, "threads", "threads", workers=3)
    elsewhere = _prepare(tmp_path, "elsewhere", Elsewhere(), workers=1)
    assert len(list(one.path.glob("train-*.h5"))) > 1
    assert fingerprint(one.path) == fingerprint(threads.path) == fingerprint(elsewhere.path)


def test_every_value_of_every_event_is_written(tmp_path: Path) -> None:
    tables = [_events(number, items=number) for number in range(3)]
    for number, table in enumerate(tables):
        table.save(tmp_path / f"{number}.h5")
    dataset = _prepare(tmp_path, "d", "threads", workers=2)
    dataset.verify()
    count = 0
    for split in dataset.splits:
        samples = dataset.read(split)
        for row, number in enumerate(samples.fixed("number").tolist()):
            expected = tables[number // 40].slice(number % 40, number % 40 + 1)
            sample = samples.slice(row, row + 1)
            assert sample.schema == expected.schema
            for name in expected:
                np.testing.assert_array_equal(_values(sample, name), _values(expected, name))
            count += 1
    assert count == 120
