"""clew and Lightning's Trainer: same seed, same batches, same curve."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from torch.utils.data import DataLoader

import clew
from clew import Dataset, Run
from clew.data.dataset.batch import to_batch
from clew.data.dataset.sampler import Sampler
from clew.recipe import find
from clew.training.config import TrainConfig
from clew.training.strategies import Strategy
from clew.training.training_data import make_loader, open_validation_samples
from tests.training import losses, validations

SETTINGS: dict[str, Any] = {"epochs": 3, "batch_size": 32, "log_every": 1, "threads": 1, "seed": 5}
CPU = torch.device("cpu")


class Curve(lightning.Callback):
    """What Lightning's Trainer logs: every step, and every validation."""

    def __init__(self) -> None:
        self.steps: list[dict[str, float]] = []
        self.validations: list[dict[str, float]] = []

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        loss = {"loss": float(outputs["loss"])} if isinstance(outputs, dict) and "loss" in outputs else {}
        logged = {name: float(value) for name, value in trainer.logged_metrics.items()}
        self.steps.append({**logged, **loss})

    def on_validation_epoch_end(self, trainer: Any, module: Any) -> None:
        self.validations.append({name: float(value) for name, value in trainer.callback_metrics.items()})


def trainer_curve(run: Run, module: Any) -> tuple[Curve, Any]:
    """Train a module by Lightning's Trainer on the batches of a run."""
    config = TrainConfig.model_validate(dict(run.config().data["train"]))
    recipe, dataset = find("lightning")(), Dataset(config.dataset)
    loader, held_out = make_loader(recipe, config, dataset, Strategy(), CPU), open_validation_samples(config, dataset)

    class Batches:
        epoch = -1

        def __iter__(self) -> Any:
            self.epoch += 1
            for portion in loader.epoch(self.epoch):
                yield portion.parts[0]["features"], portion.parts[0]["labels"]

        def __len__(self) -> int:
            return loader.sampler.steps()

    numbers = Sampler(len(held_out), config.size, 0, 0, 1, shuffle=False).epoch(0)
    samples = [to_batch(held_out.read(part), recipe.columns) for part in numbers]
    curve = Curve()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = lightning.Trainer(
            accelerator="cpu",
            max_epochs=config.epochs,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            callbacks=[curve],
        )
        validation = [(each["features"], each["labels"]) for each in samples]
        trainer.fit(module, Batches(), DataLoader(validation, batch_size=None))  # type: ignore[arg-type]
    return curve, trainer


def rebuilt(name: str, seed: int, **arguments: Any) -> Any:
    """The module with the weights with which clew starts."""
    from clew.recipe import load_code

    torch.manual_seed(seed)
    return load_code(str(Path("modules.py").resolve()) + f":{name}")(**arguments)


@pytest.mark.parametrize("schedule", ["none", "list", "epoch", "step", "every", "plateau", "dicts"])
def test_a_classifier_has_the_loss_curve_of_the_trainer(schedule: str, tmp_path: Path) -> None:
    run = clew.train(
        "modules.py:Classifier", "events.h5", arguments={"schedule": schedule}, output=tmp_path / "run", **SETTINGS
    )
    curve, trainer = trainer_curve(run, rebuilt("Classifier", 5, schedule=schedule))
    assert len(losses(run)) == len(curve.steps) > 20
    for ours, lightnings in zip(losses(run), curve.steps, strict=True):
        assert ours["loss"] == pytest.approx(lightnings["loss"], abs=1e-6)
        assert ours["train_loss"] == pytest.approx(lightnings["train_loss"], abs=1e-6)
        assert ours["train_acc"] == pytest.approx(lightnings["train_acc_step"], abs=1e-6)
    for ours, lightnings in zip(validations(run), curve.validations, strict=True):
        assert ours["val_loss"] == ours["loss"] == pytest.approx(lightnings["val_loss"], abs=1e-6)
        assert ours["val_acc"] == pytest.approx(lightnings["val_acc"], abs=1e-6)
    final = trainer.lightning_module.state_dict()
    weights = torch.load(run.states()[-1], weights_only=True)
    for name, tensor in weights["model"].items():
        torch.testing.assert_close(tensor, final[name], atol=1e-6, rtol=0)
    last_rate = weights["optimizers"]["loss"]["param_groups"][0]["lr"]
    assert last_rate == pytest.approx(trainer.optimizers[0].param_groups[0]["lr"])


def test_manual_optimisation_has_the_loss_curve_of_the_trainer(tmp_path: Path) -> None:
    run = clew.train("modules.py:Adversarial", "events.h5", output=tmp_path / "run", **SETTINGS)
    curve, trainer = trainer_curve(run, rebuilt("Adversarial", 5))
    for ours, lightnings in zip(losses(run), curve.steps, strict=True):
        assert ours["generator_loss"] == pytest.approx(lightnings["generator_loss"], abs=1e-6)
    for ours, lightnings in zip(validations(run), curve.validations, strict=True):
        assert ours["loss"] == pytest.approx(lightnings["val_loss"], abs=1e-6)
    final = trainer.lightning_module.state_dict()
    weights = torch.load(run.states()[-1], weights_only=True)
    for name, tensor in weights["model"].items():
        torch.testing.assert_close(tensor, final[name], atol=1e-6, rtol=0)
    rates = [state["param_groups"][0]["lr"] for state in weights["optimizers"].values()]
    assert rates == pytest.approx([optimizer.param_groups[0]["lr"] for optimizer in trainer.optimizers])
