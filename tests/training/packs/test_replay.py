"""Replayed steps compute what single steps compute."""

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
from clew.training.packs.engine import MAX_PLANNED_STEPS, PackEngine, StepLosses
from clew.training.packs.graph_replay import ReplayedSteps, SingleSteps, StepRunner
from clew.training.packs.samples import PackSamples, ResidentEpoch, SampleNumbers
from tests.training.packs.test_packs import BEND, CPU, CurveConfig, CurveRecipe

SAMPLES, SIZE = 370, 6
"""An epoch has 62 batches; the last one is smaller."""


class TracingRecorder:
    """Replaces a GPU: the tensor operations of a program are traced, and only these are repeated."""

    def __init__(self) -> None:
        self.recorded = 0

    def record(self, program: Callable[[], None]) -> Callable[[], None]:
        self.recorded += 1
        traced = make_fx(program)()  # this runs the program once
        first_call = [True]
        return torch.no_grad()(lambda: first_call.clear() if first_call else traced())

    def mark(self) -> Callable[[], Any]:
        return lambda: None


class FailingRecorder(TracingRecorder):
    def record(self, program: Callable[[], None]) -> Callable[[], None]:
        raise RuntimeError("cannot be recorded")


class StreamedBatches:
    """Batches one by one, as from a loader."""

    waited = 0.0

    def __init__(self, epoch: ResidentEpoch) -> None:
        self.take = epoch.take
        self.close = epoch.close


def all_samples() -> Batch:
    rng = np.random.default_rng(1)
    x, y, w = (torch.from_numpy(rng.normal(size=shape)) for shape in ((SAMPLES, 3), SAMPLES, SAMPLES))
    return Batch(SAMPLES, {"x": x, "y": y}, w.abs())


def batch_numbers(epoch: int) -> list[SampleNumbers]:
    return np.array_split(np.random.default_rng(epoch).permutation(SAMPLES), range(SIZE, SAMPLES, SIZE))


def make_engine(optimizer: dict[str, Any], *, needs_vmap: bool) -> PackEngine:
    recipes = [CurveRecipe(CurveConfig(norm=True, needs_vmap=needs_vmap, dropout=rate)) for rate in (0.0, 0.3, 0.1)]
    extra: list[dict[str, Any]] = [{"clip": 0.5}, {}, {}]
    configs = [
        TrainConfig.model_validate({"batch_size": SIZE, "seed": n, "optimizer": optimizer, **extra[n]})
        for n in range(3)
    ]
    models = [grouping.initial_model(recipe, config) for recipe, config in zip(recipes, configs, strict=True)]
    engine = PackEngine(recipes, models, configs, CPU)
    engine.prepare(all_samples().rows(torch.arange(8)))
    return engine


def train(
    engine: PackEngine, run_steps: StepRunner, *, limit: int = MAX_PLANNED_STEPS, resident: bool = True
) -> tuple[list[StepLosses], Sequence[SampleNumbers]]:
    losses, numbers, step, samples = list[StepLosses](), list[SampleNumbers](), 0, all_samples()
    for epoch in range(2):
        batches: Any = ResidentEpoch(samples, batch_numbers(epoch), CPU)
        batches, left = batches if resident else StreamedBatches(batches), len(batch_numbers(epoch))
        while left:
            factors = torch.linspace(1.0, 0.5, min(left, 40), dtype=torch.float64).unsqueeze(1).expand(-1, 3)
            plan = engine.plan(step, factors)
            while step < plan.stop:
                trained = run_steps(batches, plan, step, min(limit, plan.stop - step))
                assert len(trained.numbers) == len(trained.losses.totals) == len(trained.losses.weights)
                losses.append(trained.losses)
                numbers.extend(trained.numbers)
                step, left = step + len(trained.numbers), left - len(trained.numbers)
    return losses, numbers


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_replay, "BLOCK_STEPS", 4)
    monkeypatch.setattr(graph_replay, "BLOCKS_AFTER", 20)
    monkeypatch.setattr(graph_replay, "SHORT_CALL", float("inf"))  # more steps per call also on a busy machine


ADAM = {"name": "adamw", "lr": 0.02, "weight_decay": 0.1}
MOMENTUM = {"name": "sgd", "lr": 0.02, "parameters": {"momentum": 0.9, "dampening": 0.1}}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("optimizer", "needs_vmap", "resident"),
    [(ADAM, False, True), (MOMENTUM, True, True), (ADAM, True, False), (MOMENTUM, False, False)],
    ids=["stacked, resident", "vmap, resident", "vmap, streamed", "stacked, streamed"],
)
def test_replayed_steps_give_the_results_of_single_steps(
    optimizer: dict[str, Any], needs_vmap: bool, resident: bool
) -> None:
    single, replayed = (make_engine(optimizer, needs_vmap=needs_vmap) for _ in range(2))
    recorder = TracingRecorder()
    expected, expected_numbers = train(single, SingleSteps(single), resident=resident)
    losses, numbers = train(replayed, ReplayedSteps(replayed, recorder), resident=resident)
    assert recorder.recorded == (2 if resident else 1)
    assert all(np.array_equal(a, b) for a, b in zip(expected_numbers, numbers, strict=True))
    for name in StepLosses._fields:
        values, expected_values = (torch.cat([getattr(step, name) for step in steps]) for steps in (losses, expected))
        assert torch.equal(values, expected_values), name
    assert torch.equal(single.stack.weights, replayed.stack.weights)
    assert all(torch.equal(single.stack.untrained[name], tensor) for name, tensor in replayed.stack.untrained.items())


@pytest.mark.slow
def test_the_limit_of_steps_is_respected() -> None:
    engine = make_engine(ADAM, needs_vmap=False)
    losses, _ = train(engine, ReplayedSteps(engine, TracingRecorder()), limit=7)
    assert max(len(steps.totals) for steps in losses) == 7


@pytest.mark.slow
def test_steps_that_cannot_be_recorded_are_done_singly() -> None:
    single, failing = make_engine(ADAM, needs_vmap=False), make_engine(ADAM, needs_vmap=False)
    train(single, SingleSteps(single))
    train(failing, ReplayedSteps(failing, FailingRecorder()))
    assert torch.equal(single.stack.weights, failing.stack.weights)


class ResidentSamples(PackSamples):
    """Keeps all samples resident, as on a GPU."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        store: Any = self.loader.store
        self._resident = to_batch(store.table, arguments[0].columns)


def records(folder: Path, flat: Dataset, **settings: Any) -> list[list[Any]]:
    """Return the records of five models, of which two fail; without times and paths."""
    kind = find(BEND)
    recipe, members = kind(kind.Config.model_validate({"dropout": 0.1})), []
    for number, lr in enumerate((0.02, 1e18, 0.01, 1e30, 0.003)):
        optimizer = {"name": "sgd", "lr": lr, "parameters": {"momentum": 0.5}}
        plain = {"dataset": str(flat.path), "batch_size": 4, "epochs": 3, "order": 1, "seed": number, "threads": 1}
        config = TrainConfig.model_validate({**plain, "optimizer": optimizer, **settings})
        run = pack.create_run(folder / str(number), recipe, config)
        members.append(pack.load_member(run, recipe, config))
    pack.train_pack(members, lambda member: None, threads=1)
    names = ("kind", "epoch", "step", "samples", "loss", "lr", "metrics", "status", "error")
    kinds = ("step", "validation", "end")
    rows = [[[r.get(n) for n in names] for r in member.run.records() if r["kind"] in kinds] for member in members]
    return [[*row, member.message.replace(str(folder), "")] for row, member in zip(rows, members, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [{"log_every": 7}, {"log_every": 1000, "steps": 131}, {"log_every": 25, "schedule": {"name": "plateau"}}],
    ids=["records", "limit", "plateau"],
)
def test_replayed_training_leaves_the_same_records(
    settings: dict[str, Any], flat: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = records(tmp_path / "plain", flat, **settings)
    recorders = []

    def replayed(engine: PackEngine) -> StepRunner:
        recorders.append(TracingRecorder())
        return ReplayedSteps(engine, recorders[-1])

    monkeypatch.setattr(loop, "PackSamples", ResidentSamples)
    monkeypatch.setattr(loop, "make_step_runner", replayed)
    assert records(tmp_path / "replayed", flat, **settings) == expected
    assert sum(recorder.recorded for recorder in recorders) >= 2
    assert [rows[-2][7] for rows in expected].count("failed") == 2
