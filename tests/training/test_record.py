"""Steps that are recorded and replayed; without an NVIDIA GPU, the parts that need none."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

import clew
from clew import Dataset, Ragged, Recipe, Table
from clew.data.dataset.batch import Batch, to_batch
from clew.errors import RecipeError
from clew.recipes.lartpc import LArTPC
from clew.recipes.lartpc.settings import ImageConfig, LArTPCConfig
from clew.recipes.particleflow import ParticleFlow
from clew.recipes.particleflow.binning import event_of_items
from clew.recipes.particleflow.settings import ParticleFlowNetworkConfig
from clew.testing.toys import ToyGame
from clew.training.config import TrainConfig
from clew.training.engine import Engine
from clew.training.step_recorder import StepRecorder, can_record
from clew.training.strategies import LossSum, Strategy
from clew.training.strategies.allreduce import AllReduce
from clew.training.strategies.sharded import Sharded
from tests.recipes.lartpc.events import SIDE, particles
from tests.recipes.particleflow import flow_events
from tests.training import recipe, weights

CPU = torch.device("cpu")
ROOT = Path(__file__).parents[2]


def ragged_batch(lengths: list[int]) -> Batch:
    values = np.arange(1, sum(lengths) + 1, dtype=np.float32)
    table = Table({"x": Ragged.from_lengths(values, np.array(lengths)), "y": np.arange(len(lengths))})
    batch = to_batch(table)
    batch.capacity = {"x": Batch.capacity_for(sum(lengths), bits=3)}
    return batch


@given(some.integers(0, 1 << 40), some.integers(2, 8))
def test_the_capacity_is_little_more_than_needed(items: int, bits: int) -> None:
    capacity = Batch.capacity_for(items, bits=bits)
    assert items <= capacity <= items * (1 + 2.0 ** (1 - bits))
    assert Batch.capacity_for(capacity, bits=bits) == capacity


def test_a_batch_with_spare_capacity_is_padded_with_zeros() -> None:
    first, second = ragged_batch([3, 0, 6]), ragged_batch([4, 1, 5])
    assert first.capacity == second.capacity == {"x": 10}
    roomy = first.empty_with_capacity()
    for batch in (second, first):  # the longer one first: its remains must be cleared
        roomy.fill(batch)
        items = len(batch["x"])
        assert torch.equal(roomy["x"][:items], batch["x"]) and not roomy["x"][items:].any()
        assert torch.equal(roomy.ragged("x").offsets, batch.ragged("x").offsets)
        assert torch.equal(roomy["y"], batch["y"])
    assert roomy.has_capacity and not first.has_capacity


@given(some.lists(some.integers(0, 5), min_size=1, max_size=9), some.integers(0, 7))
def test_items_behind_the_last_offset_belong_to_no_event(lengths: list[int], more: int) -> None:
    event_numbers = event_of_items(torch.tensor([0, *np.cumsum(lengths)]), sum(lengths) + more)
    assert event_numbers.tolist() == [*np.repeat(np.arange(len(lengths)), lengths), *[len(lengths)] * more]


def test_a_ragged_column_without_capacity_is_reported() -> None:
    batch = ragged_batch([1, 2])
    batch.capacity = {}
    with pytest.raises(RecipeError, match=r"graph_capacity\(\) returns no capacity for the ragged column 'x'"):
        batch.empty_with_capacity()


def test_steps_that_cannot_be_recorded_run_plainly_with_one_warning(flat: Dataset) -> None:
    if torch.cuda.is_available():
        pytest.skip("here it can be recorded")
    line = recipe("line")

    def trained(*, recorded: bool) -> tuple[list[float], list[Any]]:
        torch.manual_seed(0)
        engine = Engine(line, line.model(), TrainConfig(), Strategy(), CPU)
        if recorded:
            engine.recorder = StepRecorder(engine.forward_backward, list(engine.model.parameters()))
        losses, batch = [], to_batch(flat.read("train"))
        batch.capacity = {}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(4):
                losses.append(float(engine.step([batch])["loss"].total))
        return losses, caught

    plain, recorded = trained(recorded=False), trained(recorded=True)
    assert recorded[0] == plain[0] and plain[0][3] < plain[0][0]
    assert not plain[1]
    assert [str(each.message).split(" (")[0] for each in recorded[1]] == ["steps cannot be recorded"]


def test_the_number_of_recordings_is_limited_and_the_largest_serves_other_sizes() -> None:
    rooms = []

    def learn(batch: Batch) -> Iterator[dict[str, LossSum]]:
        rooms.append(len(batch["x"]))
        yield {}

    def learned(lengths: list[int]) -> int:
        batch = ragged_batch(lengths)
        batch.capacity = {"x": sum(lengths)}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # where there is no GPU the last one cannot be recorded
            list(recorder.run(batch))
        return rooms[-1]

    recorder = StepRecorder(learn, [])
    assert [learned([items]) for items in range(1, 30)] == list(range(1, 30))
    assert [key[1] for key in recorder.recordings] == [(1,), (2,), (3,), (4,), (5,), (6,), (7,), (29,)]
    assert learned([3, 4]) == 7 and len(recorder.recordings) == 8  # of another size: plain
    assert learned([10]) == 29


def test_only_a_single_gpu_records() -> None:
    cuda, config = torch.device("cuda"), TrainConfig()
    assert can_record(config, Strategy(), cuda)
    assert not can_record(config, Strategy(), CPU)
    assert not can_record(TrainConfig(record=False), Strategy(), cuda)
    assert not can_record(TrainConfig(accumulate=2), Strategy(), cuda)
    assert not can_record(TrainConfig(precision="fp16"), Strategy(), cuda)


def _train_ranks(folder: Path, name: str, recorded: tuple[bool, bool]) -> list[dict[str, Any]]:
    folder.mkdir()
    command = [sys.executable, "-m", "tests.training.recorded_ranks", str(folder / "store")]
    ranks = [
        subprocess.Popen([*command, str(rank), name, str(recorded[rank]), str(folder)], cwd=ROOT) for rank in range(2)
    ]
    assert [rank.wait(200) for rank in ranks] == [0, 0]
    return [torch.load(folder / f"rank-{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("name", ["regression", "adversarial"])
def test_replayed_steps_of_two_ranks_are_the_plain_ones(name: str, tmp_path: Path) -> None:
    """Also if one rank replays and the other does not, and for batches of other sizes."""
    plain = _train_ranks(tmp_path / "plain", name, (False, False))
    for recorded in ((True, True), (True, False)):
        ranks = _train_ranks(tmp_path / f"{recorded}", name, recorded)
        assert [rank["replays"] > 0 for rank in ranks] == list(recorded)
        for rank, reference in zip(ranks, plain, strict=True):
            assert rank["losses"] == reference["losses"]
            assert all(torch.equal(rank["model"][key], tensor) for key, tensor in reference["model"].items())


def test_several_workers_record_only_if_the_settings_say_so() -> None:
    strategy, cuda = AllReduce.__new__(AllReduce), torch.device("cuda")
    strategy.synchronizes_buffers = False
    assert can_record(TrainConfig(record="allreduce"), strategy, cuda)
    assert not can_record(TrainConfig(), strategy, cuda)
    strategy.synchronizes_buffers = True  # batch norm communicates during forward
    assert not can_record(TrainConfig(record="allreduce"), strategy, cuda)
    assert not Sharded.__new__(Sharded).can_record("allreduce")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there it is recorded")
def test_every_optimiser_of_a_step_that_alternates_steps_once_although_recording_fails(flat: Dataset) -> None:
    def trained(*, recorded: bool) -> dict[str, Any]:
        torch.manual_seed(0)
        game, batch = ToyGame(), to_batch(flat.read("train"))
        batch.capacity = {}
        engine = Engine(game, game.model(), TrainConfig(), Strategy(), CPU)
        if recorded:
            engine.recorder = StepRecorder(engine.forward_backward, list(engine.model.parameters()))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(4):
                assert engine.step([batch]).keys() == {"critic", "maker"}
        return engine.model.state_dict()

    plain, recorded = trained(recorded=False), trained(recorded=True)
    assert all(torch.equal(plain[name], recorded[name]) for name in plain)


class Fixed(type(recipe("line"))):  # type: ignore[misc]
    """The line, recorded."""

    def graph_capacity(self, batch: Batch, precision: str) -> Mapping[str, int] | None:
        return {}


class FixedGame(ToyGame):
    """Two adversarial networks, recorded."""

    def graph_capacity(self, batch: Batch, precision: str) -> Mapping[str, int] | None:
        return {}


def _game(folder: Path) -> tuple[Recipe, Table]:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(200, 3)).astype(np.float32)
    return FixedGame(), Table({"x": x, "y": x.sum(1), "number": np.arange(200)})


def _fixed(folder: Path) -> tuple[Recipe, Table]:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(200, 3)).astype(np.float32)
    return Fixed(), Table({"x": x, "y": x.sum(1), "weight": rng.random(200)})


def _flow(folder: Path) -> tuple[Recipe, Table]:
    small = ParticleFlowNetworkConfig(width=32, distance=16, bin_size=64, codes=6, identity_width=32, momentum_width=32)
    return ParticleFlow(ParticleFlow.Config(model=small)), flow_events(120)


def _images(folder: Path) -> tuple[Recipe, Table]:
    return LArTPC(LArTPCConfig(image=ImageConfig(rows=SIDE, columns=SIDE))), particles(120)


def _augmented_images(folder: Path) -> tuple[Recipe, Table]:
    more = {"augment": {"enabled": True}, "loss": {"label_smoothing": 0.1}}
    return LArTPC(LArTPCConfig.model_validate({"image": {"rows": SIDE, "columns": SIDE}, **more})), particles(120)


@pytest.mark.gpu
@pytest.mark.parametrize("make_training", [_fixed, _game, _flow, _images, _augmented_images])
def test_a_replayed_training_is_the_plain_one(tmp_path: Path, make_training: Any) -> None:
    chosen, events = make_training(tmp_path)
    events.save(tmp_path / "events.h5")
    data = clew.prepare(chosen, input=[str(tmp_path / "events.h5")], output=str(tmp_path / "data"), workers=1)
    settings = {"epochs": 3, "batch_size": 8, "precision": "bf16", "log_every": 1}
    recorded = {"plain": False, "again": False, "replayed": True}
    runs = {
        name: clew.train(chosen, data, output=tmp_path / name, record=record, **settings)  # type: ignore[arg-type]
        for name, record in recorded.items()
    }
    plain, replayed = (
        [[*each["loss"].values()] for each in runs[name].records(kind="step")] for name in ("plain", "replayed")
    )
    np.testing.assert_allclose(replayed, plain, rtol=0.02)
    flat = {name: torch.cat([each.flatten() for each in weights(run).values()]) for name, run in runs.items()}

    def distance(name: str) -> float:
        return float((flat[name] - flat["plain"]).norm() / flat["plain"].norm())

    assert distance("replayed") < max(0.01, 2 * distance("again"))  # sums on a GPU have no fixed order
