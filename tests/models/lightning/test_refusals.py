"""What a LightningModule cannot do in clew is refused by name, in one line, with exit code 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli import clew as command

LINES = {
    "NoStep": "NoStep has no training_step(), which returns the loss of a batch; define it",
    "NoOptimizer": "NoOptimizer.configure_optimizers() returned None; return an optimiser, a list of them",
    "TwoOptimizers": "returned 2 optimisers, and optimisation is automatic; set self.automatic_optimization = False",
    "UnknownKey": "configure_optimizers(): a scheduler has no 'intervall'; did you mean 'interval'?",
    "NoMonitor": "ReduceLROnPlateau needs 'monitor', the name of the metric it follows",
    "OwnStep": "OwnStep overrides optimizer_step(), which clew does not call: clew steps the optimiser",
    "Callbacks": "Callbacks overrides configure_callbacks(), which clew does not call: callbacks need",
    "ReachesIn": "self.trainer.fit_loop needs Lightning's Trainer, which clew replaces; remove it",
    "StopsTrainer": "self.trainer.should_stop cannot be set: clew has no Trainer of Lightning; remove it",
    "NoLoss": "NoLoss.training_step() returned a NoneType; return the mean loss of the batch",
    "NoValidationLoss": "NoValidationLoss.validation_step() gives no loss; return the loss, or log one value",
    "SumOfLog": "log('seen') has reduce_fx=sum; clew combines logged values by their mean only",
    "ManualOnly": "ManualOnly has no validation_step(), which manual optimisation needs",
}


@pytest.mark.parametrize("name", LINES)
def test_a_module_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    done = command("train", "--model", f"modules.py:{name}", "--train", "events.h5", "--output", tmp_path / "run")
    assert done.code == 2
    assert LINES[name] in " ".join(done.err.split())
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--model", "modules.py:Classifier", "--loss", "mse"), "--loss mse: Classifier is a LightningModule"),
        (
            ("--model", "modules.py:Classifier", "--lr", "0.1"),
            "train.optimizer: configure_optimizers() of the LightningModule makes the optimisers",
        ),
        (("--model", "modules.py:Adversarial", "--set", "train.clip=1"), "train.clip 1: Adversarial uses manual opt"),
        (("--model", "modules.py:Adversarial", "--set", "train.accumulate=2"), "train.accumulate 2: Adversarial uses"),
        (
            ("--model", "modules.py:make", "--set", "model.arguments.hiden=2"),
            "make cannot be called with {'hiden': 2}",
        ),
        (
            (
                *("--model", "modules.py:Classifier", "--set", "model.arguments.schedule=epoch"),
                *("--set", "train.schedule.name=cosine"),
            ),
            "train.schedule cosine: Classifier has schedulers of its own; leave the setting out",
        ),
    ],
)
def test_a_setting_is_refused_in_one_line(options: tuple[str, ...], line: str, tmp_path: Path) -> None:
    done = command("train", *options, "--train", "events.h5", "--output", tmp_path / "run")
    assert done.code == 2
    assert line in " ".join(done.err.split())


@pytest.mark.parametrize(
    ("data", "line"),
    [
        ("OwnCollate", "OwnCollate.train_dataloader() has collate_fn=default_convert; clew makes batches itself"),
        ("FourItems", "FourItems.train_dataloader() gives 4 items per sample; clew needs (features, labels)"),
        ("Classifier", "modules.py:Classifier is no LightningDataModule; name files, or a class of data modules"),
    ],
)
def test_data_is_refused_in_one_line(data: str, line: str, tmp_path: Path) -> None:
    done = command(
        "train", "--model", "modules.py:Classifier", "--train", f"modules.py:{data}", "--output", tmp_path / "run"
    )
    assert done.code == 2
    assert line in " ".join(done.err.split())


def test_the_recipe_columns_refuses_a_lightning_module(tmp_path: Path) -> None:
    settings = tmp_path / "train.yaml"
    settings.write_text(
        "recipe: columns\ncolumns: {features: [X], labels: [Y]}\n"
        f"model: {{build: '{Path('modules.py').resolve()}:Classifier'}}\n"
    )
    dataset = tmp_path / "dataset"
    assert command("prepare", settings, "--input", "events.h5", "--output", dataset).code == 0
    done = command("train", settings, "--dataset", dataset, "--output", tmp_path / "run")
    assert done.code == 2
    assert "Classifier is a LightningModule; train it with the recipe lightning" in " ".join(done.err.split())
