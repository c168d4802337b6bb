"""`clew data inspect FILE`, `clew config show --explain`, the paths of a YAML file, and one spelling of options."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import uproot

from clew import Ragged, Table
from clew.settings import load_settings
from tests.cli import clew, done
from tests.training import RECIPES

RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same kind of events in five formats."""
    folder = tmp_path_factory.mktemp("files")
    met, lengths = RNG.normal(50, 10, 200), RNG.integers(0, 5, 200)
    jets = Ragged.from_lengths(RNG.exponential(30, lengths.sum()), lengths)
    Table({"met": met, "pt": jets}, units={"met": "GeV"}).save(folder / "events.h5")
    np.savez(folder / "events.npz", met=met)
    pq.write_table(pa.table({"met": met, "pt": [list(each) for each in jets]}), folder / "events.parquet")
    with uproot.recreate(folder / "events.root") as file:
        file["Events"] = {"met": met, "pt": Table({"pt": jets}).to_awkward()["pt"]}
    (folder / "hits.csv").write_text("event,x\n1,0.5\n1,1.5\n2,2.5\n")
    return folder


@pytest.mark.parametrize("name", ["events.h5", "events.npz", "events.parquet", "events.root", "events.root:Events"])
def test_a_file_of_any_reader_is_inspected(name: str, files: Path) -> None:
    lines = done("data", "inspect", str(files / name)).splitlines()
    assert "200 events" in lines[0] and "columns" in lines[0]
    met = next(line for line in lines if line.startswith("met"))
    assert "float64" in met and any("█" in line for line in lines)
    if "npz" not in name:
        pt = next(line for line in lines if line.startswith("pt"))
        assert "ragged" in pt and "0 to 4," in pt


def test_ranges_and_units_are_shown(files: Path) -> None:
    table = Table.load(files / "events.h5")
    line = next(line for line in done("data", "inspect", str(files / "events.h5")).splitlines() if line[:3] == "met")
    met = table.fixed("met")
    assert line.split()[:6] == ["met", "float64", "GeV", f"{met.min():.4g}", f"{met.mean():.4g}", f"{met.max():.4g}"]


def test_a_page_and_a_named_reader(files: Path, tmp_path: Path) -> None:
    done("data", "inspect", str(files / "events.root"), "--html", str(tmp_path / "page.html"))
    page = (tmp_path / "page.html").read_text()
    assert "read by root: 200 events, 2 columns" in page and "<td>ragged float64</td>" in page
    assert "2 events" in done("data", "inspect", str(files / "hits.csv"), "--reader", "text")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing.root", "no dataset there"),
        ("notes.xyz", "no reader accepts"),
        (".", "files, not a dataset; name one of them: clew data inspect "),
    ],
)
def test_what_cannot_be_inspected_is_one_line(name: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "notes.xyz").write_text("x")
    outcome = clew("data", "inspect", str(tmp_path / name))
    assert outcome.code == 2 and message in outcome.err and outcome.err.count("\n") == 1


def test_every_setting_is_explained() -> None:
    lines = done("config", "show", "tagger", "--explain", "--set", "train.epochs=7").splitlines()
    settings = {line.partition(":")[0]: place for place, line in enumerate(lines) if not line.startswith("    ")}
    assert lines[settings["train.epochs"]] == "train.epochs: 7  (int)"
    assert lines[settings["train.epochs"] + 1] == "    Number of passes over the training data."
    assert lines[settings["train.optimizer.lr"]].endswith("(float)")
    assert "train.early_stopping.patience" in settings and "tune.sampler.name" in settings
    assert "network.hidden" in settings  # of the recipe
    without = [name for name, place in settings.items() if not lines[place + 1 : place + 2][0].startswith("    ")]
    assert without == []


def test_relative_paths_of_a_yaml_file_belong_to_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/line.py").write_text((RECIPES / "line.py").read_text())
    text = "recipe: line.py\nprepare: {input: ['raw/*.h5', '/data/a.h5'], output: data}\ntrain: {dataset: data}\n"
    (tmp_path / "conf/my.yaml").write_text(text)
    for folder, base in ((tmp_path, "conf/"), (tmp_path / "conf", "")):
        monkeypatch.chdir(folder)
        loaded = load_settings(f"{base}my.yaml", ["train.start_from=runs/a"])
        assert loaded.prepare.input == (f"{base}raw/*.h5", "/data/a.h5")
        assert (loaded.prepare.output, loaded.train.dataset) == (f"{base}data", f"{base}data")
        assert loaded.train.start_from == "runs/a"  # of the command line: the working directory
    (tmp_path / "conf/raw").mkdir()
    x = RNG.normal(size=(60, 3)).astype(np.float32)
    Table({"x": x, "y": x.sum(axis=1)}).save(tmp_path / "conf/raw/a.h5")
    os.chdir(tmp_path)
    (tmp_path / "conf/my.yaml").write_text(text.replace(", '/data/a.h5'", ""))
    assert "conf/data: train" in done("prepare", "conf/my.yaml", "--workers", "1")
    assert "finished" in done("train", "conf/my.yaml", "--epochs", "1")
    assert Path("runs/line-001").is_dir()


@pytest.mark.parametrize("verb", ["train", "worker", "evaluate", "predict", "export", "submit", "bench scale"])
def test_a_dataset_is_named_by_dataset(verb: str) -> None:
    text = done(*verb.split(), "--help")
    assert "--dataset" in text and "--data " not in text


def test_lifetimes_and_epochs_have_one_spelling() -> None:
    assert "--expires" in done("token", "create", "--help") and "--days" not in done("token", "create", "--help")
    assert "--epoch" in done("tune", "report", "--help") and "--step" not in done("tune", "report", "--help")
