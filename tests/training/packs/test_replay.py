"""Steps that are recorded and replayed are those that the processor orders one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from clew import Batch, Dataset
from clew.data.dataset.batch import to_batch
from clew.recipe import find
from clew.training.config import TrainConfig
from clew.training.packs import graph_replay, grouping, loop, pack
from clew.training.packs.engine import AHEAD, PackEngine, Told
from clew.training.packs.graph_replay import Learn, Replay, Singly
from clew.training.packs.samples import Numbers, Resident, Supply
from tests.training.packs.test_packs import BEND, CPU, Curve, Settings

SAMPLES, SIZE = 370, 6
"""Batches of an epoch are 62, the last one smaller."""


class Traced:
    """In place of a device: what a program does to tensors is written down, and that alone is done again."""

    def __init__(self) -> None:
        self.recorded = 0

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        self.recorded += 1
        done = make_fx(work)()  # which does it once
        fresh = [True]
        return torch.no_grad()(lambda: fresh.clear() if fresh else done())

    def mark(self) -> Callable[[], Any]:
        return lambda: None


class Refuses(Traced):
    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        raise RuntimeError("not here")


class OneByOne:
    """As from a loader."""

    waited = 0.0

    def __init__(self, epoch: Resident) -> None:
        self.take = epoch.take
        self.close = epoch.close


def whole() -> Batch:
    rng = np.random.default_rng(1)
    x, y, w = (torch.from_numpy(rng.normal(size=shape)) for shape in ((SAMPLES, 3), SAMPLES, SAMPLES))
    return Batch(SAMPLES, {"x": x, "y": y}, w.abs())


def order(epoch: int) -> list[Numbers]:
    return np.array_split(np.random.default_rng(epoch).permutation(SAMPLES), range(SIZE, SAMPLES, SIZE))


def engine(optimizer: dict[str, Any], *, odd: bool) -> PackEngine:
    recipes = [Curve(Settings(norm=True, odd=odd, dropout=rate)) for rate in (0.0, 0.3, 0.1)]
    more: list[dict[str, Any]] = [{"clip": 0.5}, {}, {}]
    configs = [
        TrainConfig.model_validate({"batch_size": SIZE, "seed": n, "optimizer": optimizer, **more[n]}) for n in range(3)
    ]
    models = [grouping.model_of(recipe, config) for recipe, config in zip(recipes, configs, strict=True)]
    made = PackEngine(recipes, models, configs, CPU)
    made.prepare(whole().rows(torch.arange(8)))
    return made


def trained(
    made: PackEngine, learn: Learn, *, most: int = AHEAD, resident: bool = True
) -> tuple[list[Told], Sequence[Numbers]]:
    told, numbers, step, samples = list[Told](), list[Numbers](), 0, whole()
    for epoch in range(2):
        coming: Any = Resident(samples, order(epoch), CPU)
        coming, left = coming if resident else OneByOne(coming), len(order(epoch))
        while left:
            factors = torch.linspace(1.0, 0.5, min(left, 40), dtype=torch.float64).unsqueeze(1).expand(-1, 3)
            plan = made.plan(step, factors)
            while step < plan.last:
                found = learn(coming, plan, step, min(most, plan.last - step))
                assert len(found.numbers) == len(found.told.totals) == len(found.told.weights)
                told.append(found.told)
                numbers.extend(found.numbers)
                step, left = step + len(found.numbers), left - len(found.numbers)
    return told, numbers


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_replay, "_MANY", 4)
    monkeypatch.setattr(graph_replay, "_SETTLED", 20)


ADAM = {"name": "adamw", "lr": 0.02, "weight_decay": 0.1}
MOMENTUM = {"name": "sgd", "lr": 0.02, "parameters": {"momentum": 0.9, "dampening": 0.1}}


@pytest.mark.parametrize(
    ("optimizer", "odd", "resident"),
    [(ADAM, False, True), (MOMENTUM, True, True), (ADAM, True, False), (MOMENTUM, False, False)],
    ids=["lifted, resident", "vmap, resident", "vmap, streamed", "lifted, streamed"],
)
def test_replayed_steps_are_the_plain_ones(optimizer: dict[str, Any], odd: bool, resident: bool) -> None:
    plain, replayed, recorder = engine(optimizer, odd=odd), engine(optimizer, odd=odd), Traced()
    wanted, one = trained(plain, Singly(plain), resident=resident)
    found, other = trained(replayed, Replay(replayed, recorder), resident=resident)
    assert recorder.recorded == (2 if resident else 1)
    assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
    for name in Told._fields:
        mine, theirs = (torch.cat([getattr(each, name) for each in all]) for all in (found, wanted))
        assert torch.equal(mine, theirs), name
    assert torch.equal(plain.stack.weights, replayed.stack.weights)
    assert all(torch.equal(plain.stack.fixed[name], each) for name, each in replayed.stack.fixed.items())


def test_no_more_steps_are_done_than_are_asked_for() -> None:
    made = engine(ADAM, odd=False)
    told, _ = trained(made, Replay(made, Traced()), most=7)
    assert max(len(each.totals) for each in told) == 7


def test_what_cannot_be_recorded_is_done_plainly() -> None:
    plain, made = engine(ADAM, odd=False), engine(ADAM, odd=False)
    trained(plain, Singly(plain))
    trained(made, Replay(made, Refuses()))
    assert torch.equal(plain.stack.weights, made.stack.weights)


class AtHome(Supply):
    """Samples as on a device."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        store: Any = self.loader.store
        self._whole = to_batch(store.table, given[0].columns)


def records(folder: Path, flat: Dataset, **settings: Any) -> list[list[Any]]:
    """Of five models, two of which come to grief; without times and paths."""
    kind = find(BEND)
    recipe, lanes = kind(kind.Config.model_validate({"dropout": 0.1})), []
    for number, lr in enumerate((0.02, 1e18, 0.01, 1e30, 0.003)):
        optimizer = {"name": "sgd", "lr": lr, "parameters": {"momentum": 0.5}}
        plain = {"dataset": str(flat.path), "batch_size": 4, "epochs": 3, "order": 1, "seed": number, "threads": 1}
        given = TrainConfig.model_validate({**plain, "optimizer": optimizer, **settings})
        lanes.append(pack.lane(pack.create(folder / str(number), recipe, given), recipe, given))
    pack.train_pack(lanes, lambda lane: None, threads=1)
    names = ("kind", "epoch", "step", "samples", "loss", "lr", "metrics", "status", "error")
    kept = ("step", "validation", "end")
    told = [[[r.get(n) for n in names] for r in each.run.records() if r["kind"] in kept] for each in lanes]
    return [[*all, each.message.replace(str(folder), "")] for all, each in zip(told, lanes, strict=True)]


@pytest.mark.parametrize(
    "settings",
    [{"log_every": 7}, {"log_every": 1000, "steps": 131}, {"log_every": 25, "schedule": {"name": "plateau"}}],
    ids=["records", "limit", "plateau"],
)
def test_a_training_in_strides_leaves_the_same_records(
    settings: dict[str, Any], flat: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = records(tmp_path / "plain", flat, **settings)
    recorders = []

    def replayed(made: PackEngine) -> Learn:
        recorders.append(Traced())
        return Replay(made, recorders[-1])

    monkeypatch.setattr(loop, "Supply", AtHome)
    monkeypatch.setattr(loop, "replayed", replayed)
    assert records(tmp_path / "strides", flat, **settings) == wanted
    assert sum(each.recorded for each in recorders) >= 2
    assert [own[-2][7] for own in wanted].count("failed") == 2
