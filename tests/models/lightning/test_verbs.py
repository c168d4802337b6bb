"""A LightningModule under every verb, from the command line and from Python."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import clew
from clew import Run
from clew.client.submission import submission
from clew.recipe import load_code
from tests.cli import clew as command
from tests.training import losses, validations

SETTINGS: dict[str, Any] = {"epochs": 2, "batch_size": 32, "threads": 1}


def code(name: str) -> Any:
    return load_code(f"{Path('modules.py').resolve()}:{name}")


@pytest.fixture(scope="module")
def run(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of the command line."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        output = tmp_path_factory.mktemp("verbs") / "run"
        options = ("--epochs", "4", "--batch-size", "32", "--set", "model.arguments.hidden=8", "--output", output)
        done = command("train", "--model", "modules.py:Classifier", "--train", "events.h5", *options)
        assert done.code == 0, done.err
        return Run.open(output)


def test_the_run_records_the_settings_and_the_code(run: Run) -> None:
    settings = run.config().data
    assert settings["recipe"] == "lightning" and settings["model"]["arguments"] == {"hidden": 8}
    assert (run.code_folder / "modules.py").is_file()


def test_evaluate_adds_the_metrics_of_clew(run: Run) -> None:
    done = command("evaluate", run.path, "--split", "val")
    assert done.code == 0, done.err
    metrics = clew.evaluate(Run.open(run.path), split="val").metrics
    last = min(validations(run), key=lambda each: each["loss"])
    assert metrics["val_loss"].value == pytest.approx(last["val_loss"], abs=1e-5)
    assert metrics["accuracy"].value == pytest.approx(metrics["val_acc"].value, abs=1e-6)
    assert {"auc", "confusion"} <= metrics.keys()


def test_predict_and_export_give_the_outputs_of_forward(run: Run, tmp_path: Path) -> None:
    assert command("predict", run.path, "--input", "events.h5", "-o", tmp_path / "p.parquet").code == 0
    predicted = clew.predict(run, input=["events.h5"])["output"]
    module = code("Classifier")(hidden=8)
    module.load_state_dict(torch.load(run.states()[-1], weights_only=True)["model"])
    done = command("export", run.path, "--to", "onnx", "--output", tmp_path / "m.onnx")
    assert done.code == 0, done.err
    exported = clew.predict(tmp_path / "m.onnx", input=["events.h5"])["output"]
    np.testing.assert_allclose(exported, predicted, atol=1e-5)


@pytest.mark.timeout(400)
def test_tune_searches_the_arguments_of_the_module(run: Run, tmp_path: Path) -> None:
    settings = tmp_path / "tune.yaml"
    settings.write_text(
        f"""recipe: lightning
columns: {{features: [X], labels: [Y]}}
model: {{build: '{Path("modules.py").resolve()}:Classifier'}}
train: {{dataset: '{run.config().data["train"]["dataset"]}', epochs: 1, threads: 1}}
tune:
  trials: 3
  space:
    model.arguments.lr: {{log: [1.0e-3, 1.0e-1]}}
"""
    )
    done = command("tune", "run", settings, "--output", tmp_path / "study")
    assert done.code == 0, done.err
    assert "lr" in done.out


def test_a_job_takes_module_and_data_module_along(folder: Path) -> None:
    options = {"model": f"{folder}/modules.py:Classifier", "train": [f"{folder}/modules.py:Data"]}
    job = submission("", [], model=options)
    assert list(job.arguments) == ["--model", "modules.py:Classifier", "--train", "modules.py:Data"]
    assert list(job.files) == ["modules.py"]


def test_a_module_and_its_class_are_trained_in_python(tmp_path: Path) -> None:
    module = code("Hooked")()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    run = clew.train(module, "events.h5", output=tmp_path / "run", **SETTINGS)
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert {"loss", "val_loss", "val_acc", "spread"} <= validations(run)[-1].keys()
    assert losses(run)[-1]["batches"] > 1
    probabilities = clew.predict(run, input=["events.h5"])["output"]
    np.testing.assert_allclose(probabilities.sum(1), 1, atol=1e-5)
    assert clew.train(code("make"), "events.h5", output=tmp_path / "made", **SETTINGS).state == "finished"


def test_event_weights_are_the_third_item_of_a_batch(tmp_path: Path) -> None:
    class Weighted(code("Classifier")):  # type: ignore[misc]
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            x, y, weight = batch
            return (torch.nn.functional.cross_entropy(self(x), y, reduction="none") * weight).mean()

    run = clew.train(Weighted(), "events.h5", weight="w", output=tmp_path / "run", **SETTINGS)
    assert run.state == "finished"


@pytest.mark.parametrize(("model", "data"), [("Classifier", "Data"), ("ByName", "Named")])
def test_a_data_module_is_the_source_of_data(model: str, data: str, tmp_path: Path) -> None:
    names = ("--features", "x", "--labels", "kind") if data == "Named" else ()
    source = ("--model", f"modules.py:{model}", "--train", f"modules.py:{data}")
    done = command("train", *source, *names, "--epochs", "2", "--output", tmp_path / "run")
    assert done.code == 0, done.err
    run = Run.open(tmp_path / "run")
    assert run.config().data["train"]["batch_size"] == 20
    (plan,) = run.records("rank-0", "plan")
    assert (plan["samples"], plan["steps"]) == (200, 20)


def test_a_module_with_loaders_needs_no_other_data(tmp_path: Path) -> None:
    kind = type(
        "Both", (code("Classifier"),), {n: getattr(code("Data"), n) for n in ("train_dataloader", "val_dataloader")}
    )
    module = kind()
    code("Data").setup(module, "fit")
    run = clew.train(module, output=tmp_path / "run", epochs=2, threads=1)
    assert run.config().data["train"]["batch_size"] == 20


def test_pytorch_lightning_is_accepted_too(tmp_path: Path) -> None:
    text = Path("modules.py").read_text().replace("import lightning\n", "import pytorch_lightning as lightning\n")
    text = text.replace("lightning.pytorch.callbacks", "lightning.callbacks")
    (tmp_path / "older.py").write_text(text)
    done = command(
        *("train", "--model", tmp_path / "older.py:Classifier", "--train", "events.h5"),
        *("--epochs", "1", "--output", tmp_path / "run"),
    )
    assert done.code == 0, done.err


def test_clew_does_not_import_lightning() -> None:
    program = "import sys, clew, clew.training.api, clew.models.lightning.session; print('lightning' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
