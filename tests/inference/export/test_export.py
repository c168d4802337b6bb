"""An exported model gives the outputs of the run's model, with and without clew, or is not written."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import clew
from clew import Dataset, Ragged, Run, Table
from clew.errors import ConfigError, RecipeError
from clew.inference.exported_model import read_facts
from clew.models import keras
from tests.cli import clew as command
from tests.cli import done
from tests.models.keras_models import cnn, images, saved

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation")

QUICK: dict[str, Any] = {"epochs": 1, "threads": 1, "batch_size": 50}
ENDINGS = {"onnx": ".onnx", "torch": ".pt2", "keras": ".keras"}
NET = """
import torch
from torch import nn

def build():
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))

class Pool(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru, self.lstm = nn.GRU(2, 4, 2, batch_first=True, bidirectional=True), nn.LSTM(8, 5, batch_first=True)
    def forward(self, x, mask):
        found, _ = self.lstm(self.gru(x)[0])
        return (found * mask[..., None]).sum(1)[:, :3]

class Different(nn.Module):
    '''Is another model while it is exported.'''
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(3, 2)
    def forward(self, x):
        return self.line(x) * (1.01 if torch.compiler.is_exporting() else 1.0)

class Noisy(Different):
    def forward(self, x):
        return self.line(x + 0.01 * torch.randn_like(x))

class Branching(Different):
    def forward(self, x):
        return self.line(x) if x.sum() > 0 else self.line(-x)

class Scattered(Different):
    '''Adds at repeated places, the one way that onnxruntime does and the one that it does not.'''
    def __init__(self, put=False):
        super().__init__()
        self.conv, self.put = nn.Conv1d(1, 2, 3, padding='same', bias=False), put
    def forward(self, x):
        place = (torch.cumsum(torch.ones_like(x[:, 0]), 0).long() - 1) // 2
        found = self.line(x) + self.conv(x[:, None]).mean(2)
        if self.put:
            return torch.zeros_like(found).index_put((place,), found, accumulate=True)
        return torch.zeros_like(found).index_add(0, place, found, alpha=2)

def Put():
    return Scattered(put=True)

class Fixed(Different):
    '''Works for the size of batch that it was traced with.'''
    def forward(self, x):
        return self.line(x) + torch.zeros(int(x.shape[0]), 2) * len(x.tolist())
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("export")
    (path / "net.py").write_text(NET)
    rng = np.random.default_rng(4)
    pt, eta, mass = 3e4 + 9e3 * rng.normal(size=300), rng.normal(size=300), rng.exponential(2.0, 300)
    with h5py.File(path / "events.h5", "w") as file:
        file["pt"], file["eta"], file["mass"], file["event"] = pt, eta, mass, np.arange(300)
        file["top"] = (eta > 0).astype(np.int64)
    return path


def flat_run(folder: Path, name: str = "build", **more: Any) -> Run:
    path = folder / "runs" / f"{name}-{len(list(folder.glob('runs/*')))}"
    settings = {"features": "pt,eta,mass", "labels": "top", "scale": "standard", **QUICK, **more}
    return clew.train(f"{folder / 'net.py'}:{name}", str(folder / "events.h5"), output=path, **settings)


@pytest.fixture(scope="module")
def scaled(folder: Path) -> Run:
    return flat_run(folder, select="mass < 9")


@pytest.fixture(scope="module")
def keras_run(folder: Path) -> Run:
    return clew.train(saved(cnn(), folder / "cnn.keras"), images(300), output=folder / "runs" / "cnn", **QUICK)


def dataset_of(run: Run) -> str:
    return str(run.config().data["train"]["dataset"])


def same(left: Table, right: Table, tolerance: float = 1e-5) -> None:
    assert list(left) == list(right) and len(left) == len(right)
    for name, column in left.items():
        other: Any = right[name]
        if isinstance(column, Ragged):
            column, other = column.values, other.values
        np.testing.assert_allclose(column, other, atol=tolerance)


@pytest.mark.parametrize("to", ["onnx", "torch"])
def test_an_exported_model_takes_raw_columns(to: str, scaled: Run, folder: Path, tmp_path: Path) -> None:
    exported = clew.export(scaled, to=to, output=tmp_path / f"model{ENDINGS[to]}")
    assert exported.facts.included == ("standard of pt, eta, mass",)
    assert exported.facts.left_out == ("select 'mass < 9'",)
    with h5py.File(folder / "events.h5") as file:
        selected = file["mass"][:] < 9
        raw = np.stack([file[name][:][selected] for name in ("pt", "eta", "mass")], axis=1).astype(np.float32)
    if to == "onnx":
        source_lines = (clew.__path__[0], torch.__path__[0])
        assert not [place for place in source_lines if place.encode() in Path(exported.path).read_bytes()]
        (exported_output,) = onnxruntime.InferenceSession(exported.path).run(None, {"features": raw})
    else:
        exported_output = torch.export.load(exported.path).module()(torch.from_numpy(raw))["output"].detach().numpy()
    run_rows = clew.predict(scaled, input=[str(folder / "events.h5")])
    assert isinstance(run_rows, Table)
    np.testing.assert_allclose(exported_output, run_rows.fixed("output"), atol=1e-5)


@pytest.mark.parametrize("to", ["onnx", "torch"])
def test_clew_predicts_with_it_as_with_the_run(to: str, scaled: Run, folder: Path, tmp_path: Path) -> None:
    path = clew.export(scaled, to=to, output=tmp_path / f"model{ENDINGS[to]}").path
    same(clew.predict(scaled, split="val"), clew.predict(path, data=dataset_of(scaled), split="val"))
    raw = [str(folder / "events.h5")]
    same(clew.predict(scaled, input=raw), clew.predict(path, input=raw))


@pytest.mark.parametrize("to", ENDINGS)
def test_a_keras_cnn_is_exported_in_every_format(to: str, keras_run: Run, tmp_path: Path) -> None:
    exported = clew.export(keras_run, to=to, output=tmp_path / f"model{ENDINGS[to]}")
    assert exported.facts.difference <= (1e-5 if to == "onnx" else 0)
    same(clew.predict(keras_run), clew.predict(exported.path, data=dataset_of(keras_run)))
    if to == "keras":
        again = keras.load_keras().models.load_model(exported.path)
        run_rows = clew.predict(keras_run, split="val")
        assert isinstance(run_rows, Table)
        x = Dataset(dataset_of(keras_run)).read("val").fixed("features")
        np.testing.assert_allclose(again(x).detach().numpy(), run_rows.fixed("output"), atol=1e-6)


def test_a_keras_file_scales_by_itself(folder: Path, tmp_path: Path) -> None:
    library = keras.load_keras()
    model = library.Sequential([library.Input((3,)), library.layers.Dense(2)])
    path = saved(model, folder / "flat.keras")
    settings = {"features": "pt,eta,mass", "labels": "top", "scale": "min_max", **QUICK}
    run = clew.train(path, str(folder / "events.h5"), output=folder / "runs" / "scaled-keras", **settings)
    exported = clew.export(run, to="keras", output=tmp_path / "out.keras")
    again = library.models.load_model(exported.path)
    with h5py.File(folder / "events.h5") as file:
        raw = np.stack([file[name][:] for name in ("pt", "eta", "mass")], axis=1).astype(np.float32)
    run_rows = clew.predict(run, input=[str(folder / "events.h5")])
    assert isinstance(run_rows, Table)
    np.testing.assert_allclose(again(raw).detach().numpy(), run_rows.fixed("output"), atol=1e-4)


@pytest.mark.parametrize("to", ["onnx", "torch"])
def test_sequences_have_two_free_axes(to: str, folder: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    lengths = rng.integers(1, 9, 120)
    items = Ragged.from_lengths(rng.normal(size=int(lengths.sum())), lengths)
    table = Table({"a": items, "b": items.share(5 + rng.normal(size=int(lengths.sum()))), "Y": rng.integers(0, 3, 120)})
    settings = {"features": "a,b", "labels": "Y", "scale": "standard", **QUICK}
    run = clew.train(f"{folder / 'net.py'}:Pool", table, output=folder / "runs" / f"pool-{to}", **settings)
    exported = clew.export(run, to=to, output=tmp_path / f"model{ENDINGS[to]}")
    assert [(each.name, each.axes) for each in exported.facts.inputs] == [
        ("features", ("events", "features_longest")),
        ("features_mask", ("events", "features_longest")),
    ]
    same(clew.predict(run), clew.predict(exported.path, data=dataset_of(run)))


@pytest.mark.slow
@pytest.mark.parametrize("to", ["onnx", "torch"])
def test_a_graph_network_takes_nodes_and_edges(to: str, run: Run, dataset: Dataset, tmp_path: Path) -> None:
    exported = clew.export(run, to=to, output=tmp_path / f"model{ENDINGS[to]}")
    assert [each.axes for each in exported.facts.inputs] == [("node_items",), ("edge_items",)]
    assert "Tracking.prepare, which makes edge, node" in exported.facts.left_out
    same(clew.predict(run), clew.predict(exported.path, data=dataset))


def test_sums_at_repeated_places_come_out_whole(folder: Path, tmp_path: Path) -> None:
    """torch.onnx would use `ScatterND`, in which the threads of onnxruntime lose sums."""
    path = clew.export(flat_run(folder, "Scattered"), to="onnx", output=tmp_path / "model.onnx").path
    kinds = {node.op_type for node in onnx.load(path).graph.node}
    assert "ScatterElements" in kinds and "ScatterND" not in kinds
    session = onnxruntime.InferenceSession(path)
    x = np.random.default_rng(1).normal(size=(20_000, 3)).astype(np.float32)
    first, *others = (session.run(None, {"features": x})[0] for _ in range(10))
    assert all(np.array_equal(first, other) for other in others)


def test_names_and_facts_are_in_the_file(scaled: Run, keras_run: Run, tmp_path: Path) -> None:
    exported = {to: clew.export(keras_run, to=to, output=tmp_path / f"m{ENDINGS[to]}") for to in ENDINGS}
    session = onnxruntime.InferenceSession(exported["onnx"].path)
    assert [(each.name, each.shape) for each in session.get_inputs()] == [("features", ["events", 8, 8, 1])]
    assert [(each.name, each.shape) for each in session.get_outputs()] == [("output", ["events", 3])]
    with zipfile.ZipFile(exported["keras"].path) as file:
        archived_facts = json.loads(file.read("clew.json"))
    for facts in (json.loads(session.get_modelmeta().custom_metadata_map["clew"]), archived_facts):
        assert (facts["run"], facts["clew_version"], facts["outputs"]) == ("cnn", clew.__version__, ["output"])
        assert facts["dataset_key"] == Dataset(dataset_of(keras_run)).manifest.key
        assert len(facts["config_hash"]) == 64 and facts["inputs"][0]["name"] == "features"
    assert read_facts(exported["torch"].path).weights == "best"


def test_a_program_loads_without_clew(scaled: Run, tmp_path: Path) -> None:
    path = clew.export(scaled, to="torch", output=tmp_path / "model.pt2").path
    code = (
        "import sys; sys.modules['clew'] = None\n"
        "import torch\n"
        f"print(torch.export.load({str(path)!r}).module()(torch.zeros(7, 3))['output'].shape)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert ended.stdout.strip() == "torch.Size([7, 2])", ended.stderr


@pytest.mark.parametrize(
    ("to", "name", "words"),
    [
        ("onnx", "Different", r"differ by 0\.0\d+ in 'output' .* \d+ samples, more than the tolerance of 0\.0001"),
        ("torch", "Different", r"differ by 0\.0\d+ in 'output' on a batch of \d+ samples"),
        ("onnx", "Noisy", r"differ by 0\.\d+ in 'output'"),
        ("torch", "Noisy", r"differ by 0\.\d+ in 'output'"),
        (
            "onnx",
            "Put",
            "adds at repeated places by index_put, which onnxruntime's threads do not add up; use index_add",
        ),
        ("torch", "Branching", "operations depend on the values of its inputs"),
        ("torch", "Fixed", "works with one size|cannot be exported|fails on a batch of"),
    ],
)
def test_a_model_that_fails_the_parity_check_leaves_no_file(
    to: str, name: str, words: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = flat_run(folder, name)
    capsys.readouterr()
    with pytest.raises(RecipeError, match=words) as caught:
        clew.export(run, to=to, output=tmp_path / f"model{ENDINGS[to]}")
    assert str(caught.value).endswith("nothing was written") and "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())
    assert capsys.readouterr().err == ""  # torch would print its graph


def test_the_parity_check_has_the_configured_tolerance(scaled: Run, folder: Path, tmp_path: Path) -> None:
    run = flat_run(folder, "Different")
    assert clew.export(run, to="torch", output=tmp_path / "wide.pt2", tolerance=0.5).facts.difference > 1e-3
    with pytest.raises(RecipeError, match="more than the tolerance of 1e-12"):
        clew.export(scaled, to="onnx", output=tmp_path / "narrow.onnx", tolerance=1e-12)
    assert not (tmp_path / "narrow.onnx").exists()


def test_formats_that_do_not_fit_are_reported(run: Run, scaled: Run, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="only a model that came from Keras can be exported to Keras"):
        clew.export(run, to="keras", output=tmp_path / "model.keras")
    with pytest.raises(ConfigError, match="no format 'onyx'; did you mean 'onnx'"):
        clew.export(run, to="onyx")
    with pytest.raises(ConfigError, match=r"such a file ends in \.onnx"):
        clew.export(run, to="onnx", output=tmp_path / "model.pb")


def test_the_commands(scaled: Run, folder: Path, tmp_path: Path) -> None:
    file, table = tmp_path / "model.onnx", tmp_path / "scores.parquet"
    output = done("export", scaled.path, "--to", "onnx", "-o", file)
    assert "includes: standard of pt, eta, mass" in output and "does not include: select 'mass < 9'" in output
    assert "300" not in done("predict", file, dataset_of(scaled), "-o", table, "--split", "val")
    done("predict", file, folder / "events.h5", "-o", tmp_path / "raw.h5", "--workers", "2")
    run_rows = clew.predict(scaled, input=[str(folder / "events.h5")])
    assert isinstance(run_rows, Table)
    same(Table.load(tmp_path / "raw.h5"), run_rows)
    refused = command("export", scaled.path, "--to", "onnx", "-o", file)
    assert refused.code == 2 and "exists already" in refused.err
    refused = command("predict", file, "-o", tmp_path / "other.h5")
    assert refused.code == 2 and "give the events to predict" in refused.err
    refused = command("export", scaled.path, "--to", "torch", "-o", tmp_path / "x.pt2", "--tolerance", "-1")
    assert refused.code == 2
    (tmp_path / "bad.onnx").write_text("nothing")
    refused = command("predict", tmp_path / "bad.onnx", dataset_of(scaled), "-o", tmp_path / "other.h5")
    assert refused.code == 2 and "onnxruntime cannot read it" in refused.err


@pytest.mark.parametrize("keep", [False, True])
def test_inputs_are_described_and_float64_becomes_float32_unless_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: bool
) -> None:
    """The recipe of `examples` makes its features from Python lists, which are float64."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(Path(__file__).parents[3] / "examples" / "top_tagger.py", tmp_path)
    rng = np.random.default_rng(3)
    lengths = rng.integers(0, 6, 300)
    pt = Ragged.from_lengths(rng.exponential(1.0, lengths.sum()), lengths)
    Table({"pt": pt, "top": (lengths > 2).astype(np.int64)}).save(tmp_path / "events.h5")
    done("prepare", "top_tagger.py", "--input", "events.h5", "--output", "dataset", "--workers", "1")
    assert Dataset("dataset").schema["x"].dtype == "<f8"
    done("train", "top_tagger.py", "--dataset", "dataset", "--epochs", "1", "--output", "runs/a")
    text = done("export", "runs/a", "--to", "onnx", "-o", "a.onnx", *(("--keep-float64",) if keep else ()))
    kind = "float64" if keep else "float32"
    assert f"x {kind} (events, 3) to output" in text
    assert ("float64 inputs became float32: x" in text) is not keep
    session = onnxruntime.InferenceSession("a.onnx")
    assert [(each.name, each.type, each.shape) for each in session.get_inputs()] == [
        ("x", "tensor(double)" if keep else "tensor(float)", ["events", 3])
    ]
    (scores,) = session.run(None, {"x": np.ones((4, 3), dtype=kind)})
    assert scores.shape == (4, 2)
    [described] = read_facts(tmp_path / "a.onnx").inputs
    assert (described.name, described.type, described.shape) == ("x", kind, ("events", 3))
    done("predict", "a.onnx", "dataset", "-o", "exported.h5", "--raw")
    done("predict", "runs/a", "-o", "run.h5", "--raw")
    exported, original = (Table.load(tmp_path / name).fixed("output") for name in ("exported.h5", "run.h5"))
    np.testing.assert_allclose(exported, original, rtol=1e-4, atol=1e-5)
