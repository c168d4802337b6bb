"""Adversarial training under the asynchronous rules: what workers send, and that no step is lost."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

import clew
from clew import Batch, Dataset, Recipe
from clew.core.config import Document, validate
from clew.data.dataset.sampler import Sampler
from clew.errors import ConfigError, RecipeError
from clew.testing.toys import ToyGame, ToyRegression, make_dataset, saved_weights
from clew.training.asynchronous.rules import make_rule
from clew.training.asynchronous.update_kind import reason_for_steps, with_update_kind
from clew.training.config import TrainConfig

pytestmark = pytest.mark.timeout(240)
SETTINGS: dict[str, Any] = {"epochs": 2, "batch_size": 16, "threads": 1, "optimizer": {"name": "sgd", "lr": 0.05}}


class Returned(ToyGame):
    """A step that alternates, but is no generator function."""

    def optimizers(self, model: Any) -> Mapping[str, Any]:
        return {name: model[name].parameters() for name in ("critic", "maker")}

    def step(self, model: Any, batch: Batch) -> Any:
        return iter(list(super().step(model, batch)))


class Together(Returned):
    """Both losses first, then both steps: one optimiser of the master does the same."""

    def step(self, model: Any, batch: Batch) -> Any:
        return dict(super().step(model, batch))


class HalfFrozen(Together):
    """One network has no optimiser."""

    def optimizers(self, model: Any) -> Mapping[str, Any]:
        return {"critic": model["critic"].parameters()}


class OwnOptimizer(ToyRegression):
    """One loss, with an optimiser of the recipe."""

    def optimizers(self, model: nn.Module) -> Mapping[str, Any]:
        return {"loss": torch.optim.Adam(model.parameters(), lr=0.01)}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return make_dataset(tmp_path_factory.mktemp("toys"))


@pytest.fixture(scope="module")
def published(data: Dataset) -> dict[str, Tensor]:
    """The alternating updates of Goodfellow et al. (2014), algorithm 1, with k = 2, written out."""
    samples, sampler = data.read("train", columns=["x", "y"]), Sampler(data.splits["train"], 16)
    torch.manual_seed(0)
    model: Any = ToyGame().model()
    critic, maker = model["critic"], model["maker"]
    ascend = torch.optim.SGD(critic.parameters(), lr=0.05)
    descend = torch.optim.SGD(maker.parameters(), lr=0.01, momentum=0.5)
    for rows in sampler.batches(0) + sampler.batches(1):
        x, y = (torch.from_numpy(samples.fixed(name)[rows]) for name in ("x", "y"))
        for _ in range(2):
            ascend.zero_grad()
            torch.autograd.backward((softplus(-critic(y[:, None])) + softplus(critic(maker(x).detach()))).mean())
            ascend.step()
        descend.zero_grad()
        torch.autograd.backward(softplus(-critic(maker(x))).mean())
        descend.step()
    return dict(model.state_dict())


@pytest.mark.parametrize("strategy", ["single", "downpour", "backup"])
def test_one_worker_performs_the_published_update(
    strategy: str, data: Dataset, published: dict[str, Tensor], tmp_path: Path
) -> None:
    alone: dict[str, Any] = {} if strategy == "single" else {"asynchronous": {"masters": 0}}
    run = clew.train(ToyGame(), data, output=tmp_path / "run", strategy=strategy, workers=1, **alone, **SETTINGS)
    for name, tensor in published.items():
        torch.testing.assert_close(saved_weights(run)[name], tensor, rtol=1e-4, atol=1e-5)


def test_a_round_of_backup_with_several_batches_uses_all_of_them(data: Dataset, tmp_path: Path) -> None:
    """With `sync_every` 2 the gradient of the first batch was lost."""
    single = clew.train(ToyRegression(), data, output=tmp_path / "single", **SETTINGS)
    apart: dict[str, Any] = {"strategy": "backup", "workers": 1, "asynchronous": {"masters": 0, "sync_every": 2}}
    run = clew.train(ToyRegression(), data, output=tmp_path / "backup", **apart, **SETTINGS)
    for name, tensor in saved_weights(single).items():
        torch.testing.assert_close(saved_weights(run)[name], tensor, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("recipe", "reason"),
    [
        (ToyRegression(), ""),
        (Together(), ""),
        (ToyGame(), "alternates between optimisers"),
        (OwnOptimizer(), "an optimiser of its own for 'loss'"),
        (HalfFrozen(), "do not have every parameter exactly once"),
    ],
)
@pytest.mark.parametrize("strategy", ["downpour", "backup"])
def test_workers_send_gradients_only_if_the_masters_optimiser_can_replace_theirs(
    strategy: str, recipe: Recipe, reason: str
) -> None:
    assert reason in reason_for_steps(recipe) and bool(reason) == bool(reason_for_steps(recipe))
    config = TrainConfig.model_validate({"strategy": strategy})
    assert make_rule(with_update_kind(recipe, config)).sends_gradients is not bool(reason)
    if reason:
        forced = TrainConfig.model_validate({"strategy": strategy, "asynchronous": {"updates": "gradients"}})
        with pytest.raises(ConfigError, match=f"gradients cannot be used with {type(recipe).__name__}: .*{reason}"):
            with_update_kind(recipe, forced)


def test_a_step_that_alternates_unseen_is_refused(data: Dataset, tmp_path: Path) -> None:
    settings = {**SETTINGS, "strategy": "downpour", "workers": 1, "asynchronous": {"masters": 0}}
    with pytest.raises(RecipeError, match=r"step\(\) of Returned alternates .*updates=steps"):
        clew.train(Returned(), data, output=tmp_path / "run", **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"strategy": "gem", "asynchronous": {"updates": "gradients"}}, "gradients can be used only with downpour and"),
        ({"strategy": "backup", "asynchronous": {"updates": "gradients", "sync_every": 2}}, "with sync_every 1"),
        ({"strategy": "gem", "asynchronous": {"parameters": {"x": 1}}}, "unknown key 'x'"),
    ],
)
def test_settings_of_updates_that_cannot_be_used_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate(TrainConfig, Document(settings))
