"""The worked examples of the guides for your own recipe, reader and metric, and for C++, run as they are written."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clew
from tests.cli import clew as command
from tests.inference.export.test_cpp_example import compiled, run
from tests.test_docs import ROOT, _blocks
from tests.test_docs_coming_from import _run_commands

HOWTO = ROOT / "docs" / "howto"
LINES = ["1 52.1 33.0 20.4", "0 25.7", "1 80.5 61", "0"]
CONTRACT = f"""
from clew.testing import ReaderContract
from jetlines import JetLinesReader


class TestJetLines(ReaderContract):
    reader = JetLinesReader
    file_name = "events.jets"
    events = 20_000

    def piece_options(self, events):
        return {{"chunk": 10 * events}}

    def write(self, path):
        lines = {LINES}
        path.write_text("".join(lines[number % 4] + chr(10) for number in range(self.events)))
"""
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _file(page: str, name: str, block: int = 0) -> Path:
    Path(name).write_text(_blocks(HOWTO / page, "python")[block])
    return Path(name)


def _names(code: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(code, names)
    return names


def test_the_recipe_finds_the_z_boson() -> None:
    _file("own-recipe.md", "dimuon.py")
    random = np.random.default_rng(2)
    signal = random.integers(0, 2, 1500)
    mass = np.where(signal, random.normal(91, 3, 1500), random.exponential(40, 1500) + 20)
    eta, phi = random.normal(0, 1, (2, 1500)), random.uniform(-3, 3, 1500)
    phi = np.stack([phi, phi + np.pi + random.normal(0, 0.3, 1500)])  # nearly opposite, so that no pT is huge
    pt = random.exponential(20, 1500) + 20
    other = mass**2 / (2 * pt * (np.cosh(eta[0] - eta[1]) - np.cos(phi[0] - phi[1])))
    columns = {"pt1": pt, "pt2": other, "eta1": eta[0], "eta2": eta[1], "phi1": phi[0], "phi2": phi[1]}
    clew.Table({**columns, "signal": signal}).save("events.h5")
    assert _run_commands(HOWTO / "own-recipe.md") == 4
    last = clew.Run.open("runs/dimuon").last("validation")
    assert last is not None and last["metrics"]["auc"] > 0.8
    assert Path("scores.parquet").exists()


def test_the_reader_feeds_a_training() -> None:
    _file("own-reader.md", "jetlines.py")
    for name in ("run1.jets", "run2.jets"):
        Path(name).write_text("\n".join(LINES * 60) + "\n")
    assert _run_commands(HOWTO / "own-reader.md") == 2
    assert clew.Run.open("runs/jets").state == "finished"
    Path("bad.jets").write_text("1 20\n0 thirty\n")
    outcome = command("prepare", "jetlines.py", "--input", "bad.jets", "--output", "none")
    assert outcome.code == 2 and "bad.jets: byte 5: not a number" in outcome.err


def test_the_reader_keeps_the_rules_of_the_page() -> None:
    _file("own-reader.md", "jetlines.py")
    Path("test_jetlines.py").write_text(CONTRACT)
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_jetlines.py"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-3000:]


def test_the_metric_decides_about_the_best_weights(capsys: pytest.CaptureFixture[str]) -> None:
    _file("own-metric.md", "tagged.py")
    names = _names(_blocks(HOWTO / "own-metric.md", "python")[0])
    exec(_blocks(HOWTO / "own-metric.md", "python")[1], names)
    assert capsys.readouterr().out == "8.0\n"
    assert _run_commands(HOWTO / "own-metric.md") == 4
    values = [record["metrics"]["significance"] for record in clew.Run.open("runs/tagged").records(kind="validation")]
    assert len(values) == 2 and max(values) > 1


def test_the_program_prints_the_numbers_of_python() -> None:
    _file("export-cpp.md", "net.py")
    random = np.random.default_rng(1)
    events = {"pt": random.exponential(50, 400), "eta": random.normal(0, 1, 400), "mass": random.normal(90, 10, 400)}
    clew.Table({**events, "label": (events["pt"] > 40).astype(int)}).save("events.h5")
    assert _run_commands(HOWTO / "export-cpp.md") == 2
    names: dict[str, Any] = {"print": lambda value: names.update(printed=np.asarray(value))}
    exec(_blocks(HOWTO / "export-cpp.md", "python")[1], names)
    assert names["printed"].shape == (2, 2)
    (text,) = re.findall(r"echo '([^']+)'", (HOWTO / "export-cpp.md").read_text())
    outputs = run(compiled(Path("tagger.cpp")), Path("tagger.onnx"), text)
    np.testing.assert_allclose(outputs["output"], names["printed"], rtol=1e-5, atol=1e-6)
