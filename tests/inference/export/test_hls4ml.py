"""Projects of hls4ml: converted by hls4ml itself, compiled by g++, and compared with the model of the run."""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import clew
from clew import Run, Table
from clew.data.dataset.batch import Batch
from clew.errors import ConfigError, DataError, RecipeError, RunError
from clew.inference.exported_model import load
from tests.cli import clew as command
from tests.cli import done

NET = """
import torch
from torch import nn

def build():
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Dropout(0.1), nn.Linear(4, 2))

def smooth():
    return nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 2))

class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x):
        return self.last(torch.relu(self.first(x)))

class Skip(Own):
    def forward(self, x):
        return self.last(x + self.first(x))

class Branch(Own):
    def forward(self, x):
        return self.last(self.first(x) if x.sum() > 0 else x)
"""
needs_hls4ml = pytest.mark.skipif(importlib.util.find_spec("hls4ml") is None, reason="hls4ml is not installed")
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hls4ml")
    (path / "net.py").write_text(NET)
    rng = np.random.default_rng(4)
    pt, eta, mass = 3e4 + 9e3 * rng.normal(size=300), rng.normal(size=300), rng.exponential(2.0, 300)
    Table({"pt": pt, "eta": eta, "mass": mass, "top": (eta > 0).astype(np.int64)}).save(path / "events.h5")
    return path


def trained(folder: Path, name: str) -> Run:
    data, output = str(folder / "events.h5"), folder / "runs" / name
    if output.exists():
        return Run.open(output)
    columns: dict[str, Any] = {"features": "pt,eta,mass", "labels": "top", "scale": "standard"}
    return clew.train(f"{folder / 'net.py'}:{name}", data, output=output, epochs=2, threads=1, batch_size=50, **columns)


@pytest.mark.long
@needs_hls4ml
@needs_compiler
def test_the_emulation_takes_raw_columns_and_agrees_with_the_run(folder: Path, tmp_path: Path) -> None:
    run, path = trained(folder, "build"), tmp_path / "trigger.hls4ml"
    out = done("export", run.path, "--to", "hls4ml", "-o", path)
    assert "includes: standard of pt, eta, mass" in out and "Interpreting" not in out
    assert re.search(r"differs from the original by \de-0[5-9] at most \(tolerance 0.0001\)", out)
    events = Table.load(folder / "events.h5")
    emulated, original = (np.asarray(clew.predict(each, events)["output"]) for each in (path, run))
    assert len(emulated) == 300 and original.std() > 0.01
    np.testing.assert_allclose(emulated, original, rtol=1e-4, atol=1e-4)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    files = [each for each in path.rglob("*") if each.is_file()]
    assert {"build_prj.tcl", "clew.json", "network.cpp"} <= {each.name for each in files}
    assert not [each for each in files if str(tmp_path).encode() in each.read_bytes()]
    (path / "README").write_text("changed since the export")
    with pytest.raises(RunError, match="would run code as you"):
        clew.predict(path, events)


@pytest.mark.long
@needs_hls4ml
@needs_compiler
def test_a_narrow_precision_needs_a_tolerance(folder: Path, tmp_path: Path) -> None:
    run, path = trained(folder, "Own"), tmp_path / "narrow.hls4ml"
    words = ("export", run.path, "--to", "hls4ml", "--precision", "ap_fixed<12,5>", "-o", path)
    refused = command(*words)
    assert refused.code == 2 and not list(tmp_path.iterdir())
    message = " ".join(refused.err.split())
    assert re.search(r"differ by 0\.\d+ in 'output' .* more than the tolerance of 0.0001; use wider numbers", message)
    assert "differs from the original by 0." in done(*words, "--tolerance", "0.5")
    assert "ap_fixed<12,5> linear_1_weight_t" in (path / "firmware" / "defines.h").read_text()


@pytest.mark.long
@needs_hls4ml
@needs_compiler
def test_arrays_are_flattened_and_must_have_the_length_of_the_model(tmp_path: Path) -> None:
    pixels = np.random.default_rng(1).normal(size=(120, 2, 2)).astype(np.float32)
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(4, affine=False), nn.Linear(4, 1, bias=False))
    run = clew.train(model, (pixels, pixels.sum(axis=(1, 2))), output=tmp_path / "run", epochs=2, threads=1)
    exported = clew.export(run, to="hls4ml", output=tmp_path / "pixels.hls4ml", recipe=model)
    assert exported.facts.difference < 1e-4 and exported.facts.included == ()
    with pytest.raises(DataError, match="2 numbers per event, but the exported model needs 4"):
        load(exported.path)(Batch(3, {"features": torch.zeros(3, 2)}))


@needs_hls4ml
@needs_compiler
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("smooth", r"cannot have the layer GELU \('1'\), only Linear, BatchNorm1d, .*; use --to onnx"),
        ("Skip", "cannot have the layer 'add'"),
        ("Branch", "Branch is not a chain of layers that hls4ml supports; use --to onnx"),
    ],
)
def test_other_layers_are_named(folder: Path, tmp_path: Path, name: str, words: str) -> None:
    with pytest.raises(RecipeError, match=words) as caught:
        clew.export(trained(folder, name), to="hls4ml", output=tmp_path / "model.hls4ml")
    assert "\n" not in str(caught.value) and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("to", "precision", "words"),
    [
        ("hls4ml", "float", r"precision 'float' does not have the form ap_fixed<\d+,\d+>"),
        ("hls4ml", "ap_fixed<16,16>", "at least one of them before the point and one after"),
        ("hls4ml", "ap_fixed<128,16>", "at most 64 bits"),
        ("onnx", "ap_fixed<16,6>", "only hls4ml projects have numbers of a chosen width"),
    ],
)
def test_a_wrong_precision_gives_one_line(folder: Path, tmp_path: Path, to: str, precision: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        clew.export(trained(folder, "Own"), to=to, output=tmp_path / f"model.{to}", precision=precision)
    assert not list(tmp_path.iterdir())


def test_without_hls4ml_one_line_says_what_to_install(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "hls4ml", None)  # an import fails as if it were not installed
    with pytest.raises(ConfigError, match=r"need the extra hls4ml \(pip install 'clew\[hls4ml\]'\)"):
        clew.export(trained(folder, "Own"), to="hls4ml", output=tmp_path / "model.hls4ml")
    assert not list(tmp_path.iterdir())


@needs_hls4ml
def test_without_a_compiler_one_line_says_so(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = trained(folder, "Own")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"needs g\+\+; install it"):
        clew.export(run, to="hls4ml", output=tmp_path / "model.hls4ml")
    assert not list(tmp_path.iterdir())
