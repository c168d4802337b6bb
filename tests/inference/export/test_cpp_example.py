"""`clew export --cpp`: the program compiles, runs, and agrees with `clew predict`."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import clew
from tests.cli import clew as command
from tests.cli import done
from tests.test_docs import ROOT

HEADERS = (ROOT / ".venv-onnxruntime/usr/include/onnxruntime", Path("/usr/include/onnxruntime"))
NET = "from torch import nn\n\ndef build():\n    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))\n"
SEQUENCE = """
from torch import nn


class Mean(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(2, 3)

    def forward(self, x, mask):
        weight = mask.unsqueeze(2).float()
        return self.last((x * weight).sum(1) / weight.sum(1).clamp(min=1))
"""


def headers() -> Path:
    """The folder of ONNX Runtime's headers."""
    for folder in (Path(os.environ.get("CLEW_ONNXRUNTIME_HEADERS", "-")), *HEADERS):
        if (folder / "onnxruntime_cxx_api.h").is_file():
            return folder
    pytest.skip("no headers of ONNX Runtime: tools/sites-install onnxruntime unpacks those of Debian 13")


def compiled(source: Path) -> Path:
    """The program, compiled against ONNX Runtime's headers and the library of its Python package."""
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    runtime = pytest.importorskip("onnxruntime")
    library = next((Path(runtime.__file__).parent / "capi").glob("libonnxruntime.so.*"), None)
    if library is None:
        pytest.skip("this onnxruntime has no library of its own")
    program, folder = source.with_suffix(""), source.absolute().parent / "lib"
    folder.mkdir()
    for name in ("libonnxruntime.so", "libonnxruntime.so.1"):  # the names under which linker and loader look for it
        (folder / name).symlink_to(library)
    words = ["g++", "-std=c++17", "-Wall", "-Werror", str(source), f"-I{headers()}", f"-L{folder}", "-lonnxruntime"]
    made = subprocess.run(
        [*words, f"-Wl,-rpath,{folder}", "-o", str(program)], capture_output=True, text=True, timeout=200
    )
    assert made.returncode == 0, made.stderr
    return program


def run(program: Path, model: Path, text: str) -> dict[str, np.ndarray]:
    """The outputs that the program prints."""
    words = [str(program.absolute()), str(model)]
    result = subprocess.run(words, input=text, capture_output=True, text=True, timeout=100)
    assert result.returncode == 0, result.stderr
    lines = iter(result.stdout.splitlines())
    outputs = {}
    for line in lines:
        name, *shape = line.split()
        outputs[name] = np.array(next(lines).split(), dtype=float).reshape([int(length) for length in shape])
    return outputs


def as_text(array: np.ndarray) -> str:
    """An input as the program reads it."""
    return " ".join(map(str, array.shape)) + "\n" + " ".join(f"{value:.9g}" for value in array.ravel()) + "\n"


def test_a_model_with_scaling_gives_the_numbers_of_predict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(1)
    names = ("pt", "eta", "mass")
    events = {"pt": random.exponential(50, 300), "eta": random.normal(0, 1, 300), "mass": random.normal(90, 10, 300)}
    Path("net.py").write_text(NET)
    clew.Table({**events, "label": (events["pt"] > 40).astype(int)}).save("events.h5")
    words = ("--train", "events.h5", "--features", ",".join(names), "--labels", "label", "--scale", "standard")
    done("train", "--model", "net.py:build", *words, "--epochs", "1", "--output", "run")
    out = done("export", "run", "--cpp", "--output", "tagger.onnx")
    assert "C++ example: tagger.cpp" in out
    source = Path("tagger.cpp").read_text()
    assert "the columns pt, eta, mass; not scaled, the model does it" in source and "@" not in source
    raw = np.stack([events[name] for name in names], axis=1).astype(np.float32)
    outputs = run(compiled(Path("tagger.cpp")), Path("tagger.onnx"), as_text(raw))
    expected = clew.predict("tagger.onnx", events)["output"]
    np.testing.assert_allclose(outputs["output"], expected, rtol=1e-5, atol=1e-6)
    wrong = subprocess.run(["./tagger", "tagger.onnx"], input="2 4\n1 2", capture_output=True, text=True, timeout=100)
    assert wrong.returncode == 1 and wrong.stderr == "tagger: wrong shape of input features\n"


def test_a_model_of_lists_has_one_input_for_items_and_one_for_the_mask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(2)
    lengths = random.integers(1, 6, 200)
    pt, eta = random.exponential(50, lengths.sum()), random.normal(0, 1, lengths.sum())
    column = clew.Ragged.from_lengths(pt.astype(np.float32), lengths)
    table = clew.Table({"pt": column, "eta": column.share(eta.astype(np.float32)), "label": random.integers(0, 3, 200)})
    table.save("events.h5")
    Path("net.py").write_text(SEQUENCE)
    words = ("--train", "events.h5", "--features", "pt,eta", "--labels", "label", "--epochs", "1", "--output", "run")
    done("train", "--model", "net.py:Mean", "--scale", "standard", *words)
    exported = clew.export("run", to="onnx", output="lists.onnx", cpp=True)
    longest = int(lengths.max())
    padded, mask = np.zeros((200, longest, 2), dtype=np.float32), np.arange(longest) < lengths[:, None]
    padded[mask] = np.stack([column.values, eta.astype(np.float32)], axis=1)
    arrays = {"padded": padded, "mask": mask.astype(int)}
    text = "".join(as_text(arrays[item.part]) for item in exported.facts.inputs)
    outputs = run(compiled(Path("lists.cpp")), Path("lists.onnx"), text)
    expected = clew.predict("lists.onnx", table)
    np.testing.assert_allclose(outputs["output"], expected.fixed("output"), rtol=1e-5, atol=1e-6)


def test_an_example_needs_onnx_and_does_not_replace_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    clew.Table({"X": np.ones((40, 3), dtype=np.float32), "Y": np.arange(40) % 2}).save("events.h5")
    Path("net.py").write_text(NET)
    done("train", "--model", "net.py:build", "--train", "events.h5", "--epochs", "1", "--output", "run")
    Path("a.cpp").write_text("mine")
    for words, message in (
        (("--to", "torch", "--output", "a.pt2"), "the C++ example runs ONNX files; use --cpp with --to onnx"),
        (("--output", "a.onnx"), "a.cpp exists already"),
    ):
        outcome = command("export", "run", "--cpp", *words)
        assert outcome.code == 2 and message in outcome.err
    assert Path("a.cpp").read_text() == "mine" and not Path("a.onnx").exists() and not Path("a.pt2").exists()
