"""The code of docs/howto/columnar.md, and predictions for events of coffea, polars and Arrow."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np
import polars as pl
import pytest
import uproot

import clew
from tests.test_docs import ROOT, _blocks

PAGE = ROOT / "docs" / "howto" / "columnar.md"
FEATURES = ("MET_pt", "MET_phi", "PV_npvs")
NET = "from torch import nn\n\ndef build():\n    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))\n"

coffea = pytest.importorskip("coffea", reason="coffea is not installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file like NanoAOD, and a model that was trained on its flat branches."""
    folder = tmp_path_factory.mktemp("columnar")
    random, count = np.random.default_rng(1), 400
    lengths = random.poisson(4, count)
    jets = ak.unflatten(random.exponential(40, lengths.sum()).astype(np.float32), lengths)
    columns: dict[str, Any] = {
        "run": np.ones(count, dtype=np.uint32),
        "luminosityBlock": np.ones(count, dtype=np.uint32),
        "event": np.arange(count),
        "MET_pt": random.exponential(30, count).astype(np.float32),
        "MET_phi": random.uniform(-3, 3, count).astype(np.float32),
        "PV_npvs": random.integers(1, 60, count).astype(np.int32),
        "label": random.integers(0, 2, count).astype(np.int32),
    }
    with uproot.recreate(folder / "nano.root") as file:
        kinds = {name: values.dtype for name, values in columns.items()}
        collection = ak.zip({"pt": jets, "eta": jets, "phi": jets, "mass": jets})
        file.mktree("Events", {**kinds, "Jet": collection.type.content})
        file["Events"].extend({**columns, "Jet": collection})
    (folder / "net.py").write_text(NET)
    source, run = str(folder / "nano.root"), folder / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        made = clew.train(
            "net.py:build", source, features=FEATURES, labels="label", scale="standard", epochs=1, output=run
        )
        clew.export(made, to="onnx", output="model.onnx")
    return folder


def nano_events(path: Path) -> Any:
    from coffea.nanoevents import NanoAODSchema, NanoEventsFactory

    NanoAODSchema.warn_missing_crossrefs = False
    return NanoEventsFactory.from_root({str(path): "Events"}, schemaclass=NanoAODSchema).events()


@pytest.mark.filterwarnings("ignore")  # of coffea
def test_events_of_coffea_give_the_rows_of_the_file_and_only_the_needed_branches_are_read(folder: Path) -> None:
    events = nano_events(folder / "nano.root")
    rows = clew.predict(folder / "model.onnx", events)
    expected = clew.predict(folder / "model.onnx", input=[str(folder / "nano.root")])
    np.testing.assert_array_equal(ak.to_numpy(rows["output"]), expected.fixed("output"))
    assert rows["event"].to_list() == list(range(400))
    table = clew.Table.from_awkward(events, columns=["Jet_pt", "Jet_eta"])
    assert table.items_with("Jet_pt") == ["Jet_pt", "Jet_eta"]
    assert ak.all(table.to_awkward()["Jet_pt"] == events.Jet.pt)


@pytest.mark.filterwarnings("ignore")
def test_the_processor_of_the_page_runs_in_coffea(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from coffea import processor
    from coffea.nanoevents import NanoAODSchema

    monkeypatch.chdir(folder)
    names: dict[str, Any] = {}
    exec(_blocks(PAGE, "python")[2], names)
    runner = processor.Runner(
        processor.IterativeExecutor(status=False), schema=NanoAODSchema, chunksize=150, savemetrics=False
    )
    files = {"sample": {"files": {str(folder / "nano.root"): "Events"}}}
    out = runner(files, processor_instance=names["Scores"](), treename="Events")
    expected = clew.predict("model.onnx", input=["nano.root"]).fixed("output")
    assert out["events"] == 400
    np.testing.assert_allclose(sorted(row[0] for row in out["scores"]), np.sort(expected[:, 0]), rtol=1e-6)


def test_frames_and_arrow_give_their_own_kind(folder: Path) -> None:
    with uproot.open(folder / "nano.root") as file:
        columns = file["Events"].arrays(FEATURES, library="np")
    frame, expected = pl.DataFrame(columns), clew.predict(folder / "model.onnx", columns)["output"]
    polars = clew.predict(folder / "model.onnx", frame)
    assert isinstance(polars, pl.DataFrame)
    np.testing.assert_allclose(np.array(polars["output"].to_list()), expected, rtol=1e-6)
    arrow = clew.predict(folder / "model.onnx", frame.to_arrow())
    assert arrow.num_rows == 400 and arrow.column_names == ["output"]
    assert clew.predict(folder / "model.onnx", frame.to_pandas()).shape == (400, 2)


def test_a_file_that_was_replaced_is_read_again(folder: Path, tmp_path: Path) -> None:
    events = {name: np.ones(3, dtype=np.float32) for name in FEATURES}
    model = tmp_path / "model.onnx"
    model.write_bytes((folder / "model.onnx").read_bytes())
    first = clew.predict(model, events, trust=True)["output"]
    run = clew.train(
        str(folder / "net.py:build"), str(folder / "nano.root"), features=FEATURES, labels="label", epochs=1,
        scale="standard", seed=5, output=tmp_path / "run",
    )  # fmt: skip
    clew.export(run, to="onnx", output=model, replace=True)
    assert not np.allclose(first, clew.predict(model, events)["output"])


def test_the_conversions_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = _blocks(PAGE, "python")
    exec(blocks[0], {})
    pytest.importorskip("dask_awkward", reason="dask-awkward is not installed")

    class Plain(clew.Recipe):
        def prepare(self, events: clew.Table) -> clew.Table:
            return events

    clew.Table({"pt": clew.Ragged.from_lists([[1.0, 2.0], [], [3.0]] * 20)}).save("events.h5")
    clew.prepare(Plain, input=["events.h5"], output="dataset", workers=1)
    names: dict[str, Any] = {}
    exec(blocks[1], names)
    assert float(ak.sum(names["total"])) == float(clew.Dataset("dataset").read("train").ragged("pt").values.sum())


@pytest.mark.filterwarnings("ignore")
def test_real_nanoaod_of_cms(folder: Path) -> None:
    data = Path(os.environ.get("CLEW_TEST_DATA", ROOT / ".." / "shared" / "data")) / "particleflow/coffea/pfnano.root"
    if not data.is_file():
        pytest.skip(f"{data} is not here")
    rows = clew.predict(folder / "model.onnx", nano_events(data))
    expected = clew.predict(folder / "model.onnx", input=[f"{data}:Events"])
    assert len(rows) == 10
    np.testing.assert_allclose(ak.to_numpy(rows["output"]), expected.fixed("output"), rtol=1e-6)
