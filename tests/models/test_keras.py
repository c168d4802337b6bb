"""Keras models inside clew: as torch modules, in files and objects, under every strategy."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

import clew
from clew.errors import ConfigError, StoppedError
from clew.models import keras, loading
from clew.training.api import resume
from clew.training.strategy_table import ASYNCHRONOUS
from tests.models.keras_models import cnn, images, saved
from tests.training import validations, weights

pytestmark = [pytest.mark.timeout(240), pytest.mark.filterwarnings("ignore:__array__ implementation")]

BIN = Path(sys.executable).parent
QUICK: dict[str, Any] = {"epochs": 3, "batch_size": 50, "threads": 1, "optimizer": {"lr": 1e-2}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CNN as .keras, .h5 and .json, and images in HDF5."""
    path = tmp_path_factory.mktemp("keras")
    torch.manual_seed(1)
    with keras.seeded_initialisation():
        model = cnn()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the warning of Keras about .h5
        for name in ("cnn.keras", "cnn.h5", "cnn.json"):
            saved(model, path / name)
    for name, (x, y) in {"a.h5": images(500), "b.h5": images(300, 1)}.items():
        with h5py.File(path / name, "w") as file:
            file["images"], file["kind"] = x, y
    return path


def train(folder: Path, output: Path, model: Any = "cnn.keras", **settings: Any) -> clew.Run:
    source = folder / model if isinstance(model, str) else model
    data = (str(folder / "a.h5"), str(folder / "b.h5"))
    output = folder / "runs" / f"{output.parent.name}-{output.name}"  # all trainings share the dataset next to it
    return clew.train(source, *data, features="images", labels="kind", output=output, **{**QUICK, **settings})


@pytest.fixture(scope="module")
def alone(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> clew.Run:
    return train(folder, tmp_path_factory.mktemp("alone") / "run")


def test_a_keras_model_is_a_torch_module_with_stable_names() -> None:
    for _ in range(2):  # Keras continues the numbers of layers in the second model
        module = keras.to_module(cnn(dropout=True))
        assert list(module.state_dict()) == [
            *("0.kernel", "0.bias", "1.gamma", "1.beta", "1.moving_mean", "1.moving_variance"),
            *("5.kernel", "5.bias"),
        ]
        assert [name for name, _ in module.named_buffers()] == ["1.moving_mean", "1.moving_variance"]
        assert all(parameter.requires_grad for parameter in module.parameters())


def test_its_outputs_are_those_of_keras_and_its_weights_go_back() -> None:
    model, x = cnn(), images(20)[0]
    module: Any = keras.to_module(model)
    with torch.no_grad():
        for tensor in module.state_dict().values():
            tensor.add_(0.05)
        output = module.eval()(torch.from_numpy(x))
    torch.testing.assert_close(keras.to_keras(module)(x), output, rtol=0, atol=0)
    torch.testing.assert_close(
        module(torch.from_numpy(x[..., 0])), output, rtol=0, atol=0
    )  # Keras adds a last axis too


def test_statistics_are_updated_in_training_alone() -> None:
    module = keras.to_module(cnn())
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    module.eval()(torch.from_numpy(images(20)[0]))
    assert all(torch.equal(buffer, before[name]) for name, buffer in module.named_buffers())
    module.train()(torch.from_numpy(images(20)[0]))
    assert not any(torch.equal(buffer, before[name]) for name, buffer in module.named_buffers())


def test_a_frozen_layer_stays_a_parameter_without_gradient() -> None:
    model = cnn()
    model.layers[0].trainable = False
    module = keras.to_module(model)
    assert [name for name, p in module.named_parameters() if not p.requires_grad] == ["0.kernel", "0.bias"]


def test_branches_make_one_module_and_are_not_cut() -> None:
    library = keras.load_keras()
    inputs = library.Input((4,))
    joined = library.layers.Concatenate()([library.layers.Dense(3)(inputs), library.layers.Dense(2)(inputs)])
    module = keras.to_module(library.Model(inputs, library.layers.Dense(1, activation="sigmoid")(joined)))
    assert isinstance(module, keras.KerasModule)
    assert list(module.state_dict()) == ["kernel", "bias", "kernel_1", "bias_1", "kernel_2", "bias_2"]
    assert loading.gives_probabilities(module)
    line = library.Model(inputs, library.layers.Dense(1)(library.layers.Dense(3)(inputs)))
    assert isinstance(keras.to_module(line), keras.KerasChain)
    assert not loading.gives_probabilities(keras.to_module(line))


def test_a_mask_reaches_a_recurrent_layer() -> None:
    library = keras.load_keras()
    module = keras.to_module(library.Sequential([library.Input((None, 2)), library.layers.GRU(3)])).eval()
    x = torch.randn(2, 5, 2)
    mask = torch.tensor([[True] * 5, [True, True, False, False, False]])
    short = module(x[1:, :2], torch.ones(1, 2, dtype=torch.bool))
    torch.testing.assert_close(module(x, mask)[1:], short)


@pytest.mark.parametrize("name", ["cnn.keras", "cnn.h5", "cnn.json", "object", "factory"])
def test_every_form_of_a_model_trains(name: str, folder: Path, alone: clew.Run, tmp_path: Path) -> None:
    """A file or an object starts with its weights; an architecture or a factory with new ones."""
    model: Any = {"object": keras.read_keras(folder / "cnn.keras"), "factory": cnn}.get(name, name)
    run = train(folder, tmp_path / "run", model)
    if name in ("cnn.keras", "cnn.h5", "object"):
        for key, tensor in weights(alone).items():
            torch.testing.assert_close(weights(run)[key], tensor)
    assert validations(run)[-1]["accuracy"] > 0.7


def test_a_fresh_architecture_follows_the_seed(folder: Path, tmp_path: Path) -> None:
    runs = [train(folder, tmp_path / f"{n}", "cnn.json", epochs=1, seed=seed) for n, seed in enumerate((3, 3, 4))]
    first, second, other = ([record["loss"] for record in run.records("rank-0", "step")] for run in runs)
    assert first == second != other


@pytest.mark.parametrize(
    ("settings", "exact"),
    [
        ({"strategy": "allreduce"}, False),
        ({"strategy": "allreduce", "buffers": "synchronize"}, True),
        ({"strategy": "sharded"}, False),
        ({"strategy": "sharded", "buffers": "synchronize"}, True),
        ({"strategy": "pipeline"}, False),
        ({"strategy": "pipeline", "microbatches": 1}, True),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else None,
)
def test_every_strategy_trains_a_cnn_as_well_as_one_process(
    settings: dict[str, Any], exact: bool, folder: Path, alone: clew.Run, tmp_path: Path
) -> None:
    """The same weights where batch norms see the whole batch; else the same quality, with statistics of all ranks."""
    run = train(folder, tmp_path / "run", workers=2, **settings)
    reference, trained = weights(alone), weights(run)
    assert reference.keys() == trained.keys()
    assert validations(run)[-1]["accuracy"] == pytest.approx(validations(alone)[-1]["accuracy"], abs=0.03)
    assert validations(run)[-1]["loss"] == pytest.approx(validations(alone)[-1]["loss"], abs=0.05)
    for key, tensor in reference.items():
        if exact:
            torch.testing.assert_close(trained[key], tensor, rtol=2e-3, atol=2e-4)
        elif "moving" in key and settings["strategy"] != "pipeline":
            torch.testing.assert_close(trained[key], tensor, rtol=0.1, atol=0.05)


@pytest.mark.parametrize("strategy", ASYNCHRONOUS)
def test_every_strategy_with_a_master_trains_a_cnn(
    strategy: str, folder: Path, alone: clew.Run, tmp_path: Path
) -> None:
    """Two workers do half of the updates each, or average them: a few epochs more, the same quality."""
    run = train(folder, tmp_path / "run", workers=2, strategy=strategy, epochs=10, asynchronous={"sync_every": 1})
    assert weights(run).keys() == weights(alone).keys()
    best = max(each["accuracy"] for each in validations(run))
    assert best >= validations(alone)[-1]["accuracy"] - 0.03
    for key, tensor in weights(run).items():
        if "moving" in key:
            assert torch.isfinite(tensor).all() and not torch.equal(
                tensor, torch.full_like(tensor, float("var" in key))
            )


@pytest.mark.long
def test_a_launcher_may_start_the_ranks(folder: Path, alone: clew.Run, tmp_path: Path) -> None:
    for name, starter in {"torchrun": "--standalone --nproc-per-node 2 --no-python", "mpiexec": "-n 2"}.items():
        options = ["--features", "images", "--labels", "kind", "--epochs", "3", "--set", "train.batch_size=50"]
        more = ["train.threads=1", "--set", "train.optimizer.lr=1e-2", "--set", "train.buffers=synchronize"]
        command = [BIN / name, *starter.split(), BIN / "clew", "train", "--model", "cnn.keras", "--train", "a.h5"]
        done = subprocess.run(
            [*map(str, command), "--val", "b.h5", *options, "--set", *more, "--output", str(tmp_path / name)],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=200,
            env={**os.environ, "KERAS_BACKEND": "tensorflow"},  # clew chooses the right one
        )
        assert done.returncode == 0, done.stdout + done.stderr
        for key, tensor in weights(alone).items():
            torch.testing.assert_close(weights(clew.Run.open(tmp_path / name))[key], tensor, rtol=2e-3, atol=2e-4)


def test_resuming_is_exact_with_statistics_and_seeded_dropout(folder: Path, tmp_path: Path) -> None:
    path = saved(cnn(dropout=True), tmp_path / "model.keras")
    settings = {"epochs": 3, "checkpoint_minutes": 1e-5, "batch_size": 25}
    whole = train(folder, tmp_path / "whole", path, **settings)
    with pytest.raises(StoppedError):
        train(folder, tmp_path / "run", path, time_limit_minutes=0.002, **settings)
    run = resume(whole.path.with_name(f"{tmp_path.name}-run"), time_limit_minutes=10)
    assert all(torch.equal(weights(run)[key], tensor) for key, tensor in weights(whole).items())


def test_a_keras_object_reaches_workers(folder: Path, tmp_path: Path) -> None:
    run = train(folder, tmp_path / "run", cnn(), workers=2, epochs=1)
    assert run.state == "finished"
    assert clew.evaluate(run, recipe=cnn()).events == 300


def test_a_yaml_of_the_columns_recipe_may_name_a_keras_file(folder: Path, tmp_path: Path) -> None:
    from clew.settings import load_settings

    text = f"recipe: columns\ncolumns: {{features: [images], labels: [kind]}}\nmodel: {{build: {folder}/cnn.keras}}\n"
    (tmp_path / "my.yaml").write_text(text)
    loaded = load_settings(str(tmp_path / "my.yaml"), ["train.epochs=1"])
    source = {"train": [str(folder / "a.h5")], "val": [str(folder / "b.h5")]}
    data = clew.prepare(loaded.recipe, input=source, output=str(tmp_path / "data"), workers=1)
    assert clew.train(loaded.recipe, data, config=loaded.train, output=tmp_path / "run").state == "finished"


@pytest.mark.parametrize("last", ["softmax", None])
def test_the_loss_of_probabilities_is_that_of_their_logits(last: str | None, folder: Path, tmp_path: Path) -> None:
    first, second = cnn(norm=False, last=last), cnn(norm=False, last=None)
    with keras.without_array_warnings():
        second.set_weights(first.get_weights())
    runs = [train(folder, tmp_path / str(n), model, epochs=1) for n, model in enumerate((first, second))]
    one, two = (validations(run)[-1] for run in runs)
    assert one["loss"] == pytest.approx(two["loss"], rel=1e-4)
    assert one["accuracy"] == two["accuracy"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: cnn(kernel_regularizer="l2"), "has a kernel_regularizer, which clew does not apply"),
        (lambda: keras.load_keras().Sequential([keras.load_keras().layers.Dense(3)]), "is not built; give it an Input"),
    ],
)
def test_impossible_models_are_reported_in_one_line(make: Any, message: str, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        train(folder, tmp_path / "run", make())


def test_penalties_can_be_left_out(folder: Path, tmp_path: Path) -> None:
    model = cnn(kernel_regularizer="l2")
    assert train(folder, tmp_path / "run", model, epochs=1, penalties="ignore").state == "finished"


@pytest.mark.parametrize(("name", "words"), [("no.keras", "no file"), ("bad.keras", "Keras cannot read it")])
def test_a_file_that_is_not_a_keras_model_is_reported(name: str, words: str, folder: Path, tmp_path: Path) -> None:
    (folder / "bad.keras").write_text("nothing")
    with pytest.raises(ConfigError, match=words):
        train(folder, tmp_path / "run", name)
    assert not list((folder / "runs").glob(f"{tmp_path.name}*"))


def test_another_backend_is_reported(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = cnn()
    monkeypatch.setattr(keras.load_keras().backend, "backend", lambda: "jax")  # only the torch backend runs here
    with pytest.raises(ConfigError, match="its jax backend, clew needs torch: import clew before keras"):
        train(folder, tmp_path / "run", model)


def test_sigmoid_outputs_make_a_binary_loss(tmp_path: Path) -> None:
    library, rng = keras.load_keras(), np.random.default_rng(0)
    x = rng.normal(size=(400, 3)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    model = library.Sequential([library.Input((3,)), library.layers.Dense(1, activation="sigmoid")])
    run = clew.train(model, (x, y), output=tmp_path / "run", **{**QUICK, "optimizer": {"lr": 0.1}, "epochs": 5})
    assert validations(run)[-1]["accuracy"] > 0.9 and validations(run)[-1]["auc"] > 0.95
    assert validations(run)[-1]["loss"] < 0.3


SESSION = """
import {imports}
import numpy as np
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
x = np.ones((40, 2), dtype=np.float32)
print(keras.backend.backend(), clew.train(model, (x, x.sum(axis=1)), epochs=1).state)
"""


def session(imports: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A Python session with the variables of a new user: no KERAS_BACKEND, no keras.json."""
    variables = {name: value for name, value in os.environ.items() if name != "KERAS_BACKEND"}
    command = [sys.executable, "-W", "ignore", "-c", SESSION.format(imports=imports)]
    variables |= {"KERAS_HOME": str(folder)}
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True)


@pytest.mark.long
def test_keras_imported_after_clew_uses_torch(tmp_path: Path) -> None:
    result = session("clew, keras", tmp_path)
    assert result.stdout == "torch finished\n", result.stderr
