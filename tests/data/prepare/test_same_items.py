"""Files that do not say which columns describe the same items, as people write them: one decision for a dataset."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import awkward as ak
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import uproot

import clew
from clew import readers
from clew.errors import DataError
from clew.testing import columns_sharing_offsets
from tests.cli import clew as command
from tests.cli import script

RECIPE = """
import clew
from clew import readers
from clew.data.transforms import SelectItems


class Jets(clew.Recipe):
    def read(self, path):
        return readers.read(path{options})

    def transforms(self):
        return [SelectItems(where="{where}")]

    def prepare(self, events):
        return events

    def model(self):
        raise NotImplementedError
"""
LENGTHS = np.random.default_rng(1).poisson(3.5, 400)


def _lists(values: Any, lengths: Any = LENGTHS) -> Any:
    return ak.unflatten(np.resize(np.asarray(values, dtype="f8"), int(np.sum(lengths))), lengths)


def _jets(lengths: Any = LENGTHS) -> dict[str, Any]:
    total, random = int(np.sum(lengths)), np.random.default_rng(2)
    return {"pt": _lists(random.exponential(30, total), lengths), "eta": _lists(random.normal(0, 2, total), lengths)}


def _tree(path: Path, columns: dict[str, Any]) -> None:
    with uproot.recreate(path) as file:
        file.mktree("tree", {name: ak.Array(values).type.content for name, values in columns.items()})
        file["tree"].extend(columns)


def _rntuple(path: Path, columns: dict[str, Any]) -> None:
    with uproot.recreate(path) as file:
        file["tree"] = columns


def _parquet(path: Path, columns: dict[str, Any]) -> None:
    pq.write_table(pa.table({name: pa.array(ak.to_list(values)) for name, values in columns.items()}), path)


def _hdf5(path: Path, columns: dict[str, Any]) -> None:
    with h5py.File(path, "w") as file:
        for name, values in columns.items():
            events = np.empty(len(values), dtype=object)
            events[:] = [np.asarray(event) for event in values]
            file.create_dataset(name, (len(values),), h5py.vlen_dtype("f8"))[:] = events


def _pickle(path: Path, columns: dict[str, Any]) -> None:
    path.write_bytes(pickle.dumps({name: [np.asarray(e) for e in values] for name, values in columns.items()}))


def _npz(path: Path, columns: dict[str, Any]) -> None:
    arrays: dict[str, Any] = {name: np.asarray(ak.flatten(values)) for name, values in columns.items()}
    arrays |= {f"{name}_offsets": np.append(0, np.cumsum(ak.num(values))) for name, values in columns.items()}
    np.savez(path, **arrays)


def _table(path: Path, columns: dict[str, Any]) -> None:
    clew.Table({name: clew.Ragged.from_lists(ak.to_list(values), "f8") for name, values in columns.items()}).save(path)


WRITERS: dict[str, Callable[[Path, dict[str, Any]], None]] = {
    "tree.root": _tree,
    "ntuple.root": _rntuple,
    "jets.parquet": _parquet,
    "plain.h5": _hdf5,
    "jets.pkl": _pickle,
    "jets.npz": _npz,
    "table.h5": _table,
}
formats = pytest.mark.parametrize("name", WRITERS)


def _prepare(folder: Path, *inputs: str, where: str = "abs(eta) < 2.5", options: str = "") -> clew.Table:
    """The samples of a preparation, in one split."""
    (folder / "jets.py").write_text(RECIPE.format(where=where, options=options))
    recipe, paths = str(folder / "jets.py"), [str(folder / name) for name in inputs]
    settings: dict[str, Any] = {"output": str(folder / "dataset"), "replace": True, "split": {"train": 1.0}}
    return clew.prepare(recipe, input=paths, workers=1, keep="always", **settings).read("train")


@formats
def test_a_cut_on_one_column_cuts_the_columns_of_equal_lengths(tmp_path: Path, name: str) -> None:
    jets = _jets()
    WRITERS[name](tmp_path / name, jets)
    samples = _prepare(tmp_path, name, options=", chunk=90")
    expected = [np.asarray(pt)[np.abs(np.asarray(eta)) < 2.5] for pt, eta in zip(jets["pt"], jets["eta"], strict=True)]
    np.testing.assert_array_equal(samples.ragged("pt").values, np.concatenate(expected))
    assert samples.ragged("pt").lengths.tolist() == [len(event) for event in expected]


@formats
def test_the_pieces_of_a_file_read_in_python_share_their_items(tmp_path: Path, name: str) -> None:
    muons = np.where(np.arange(400) < 300, LENGTHS, LENGTHS // 2)  # as many as jets in the first pieces
    WRITERS[name](tmp_path / name, {**_jets(), "muon": _lists([1.0], muons)})
    for piece in readers.read(str(tmp_path / name), chunk=100):
        assert columns_sharing_offsets(piece) == {frozenset({"pt", "eta"}), frozenset({"muon"})}


@pytest.mark.parametrize("reverse", [False, True])
def test_one_file_in_which_lengths_differ_decides_for_all_files(tmp_path: Path, reverse: bool) -> None:
    _rntuple(tmp_path / "few.root", {**_jets([1, 2]), "muon": _lists([9.0], [1, 2])})
    _rntuple(tmp_path / "many.root", {**_jets(), "muon": _lists([9.0], LENGTHS[::-1])})
    names = ["few.root", "many.root"]
    samples = _prepare(tmp_path, *(reversed(names) if reverse else names))
    assert len(samples.ragged("muon").values) == 3 + LENGTHS.sum(), "a cut on jets must not touch muons"
    assert len(samples.ragged("pt").values) < 3 + LENGTHS.sum()
    assert columns_sharing_offsets(samples) == {frozenset({"pt", "eta"}), frozenset({"muon"})}


def test_a_further_file_does_not_make_the_known_ones_be_read_again(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("CLEW_CACHE", str(tmp_path / "cache"))
    _tree(tmp_path / "a.root", _jets())
    _prepare(tmp_path, "a.root")
    _tree(tmp_path / "b.root", _jets([3, 1, 2]))
    assert len(_prepare(tmp_path, "a.root", "b.root")) == 403
    assert len(list((tmp_path / "cache" / "read").glob("*/*.table"))) == 2, "the events of a.root stay cached"


def test_equal_lengths_that_may_be_chance_are_reported_with_the_remedy(tmp_path: Path) -> None:
    _rntuple(tmp_path / "pairs.root", {"lepton_pt": _lists([1.0, 2.0], [2] * 50), "jet_pt": _lists([3.0], [2] * 50)})
    (tmp_path / "jets.py").write_text(RECIPE.format(where="jet_pt > 1", options=""))
    ended = script("prepare", tmp_path / "jets.py", "--input", tmp_path / "pairs.root", "--output", tmp_path / "d")
    assert ended.code == 0
    assert "jet_pt, lepton_pt: treated as the same items" in ended.out and "items: [[jet_pt], [lepton_pt]]" in ended.out


def test_declared_groups_replace_the_rule(tmp_path: Path) -> None:
    columns = {"lepton_pt": _lists([1.0, 2.0], [2] * 50), "jet_pt": _lists([1.0, 3.0], [2] * 50)}
    _rntuple(tmp_path / "pairs.root", columns)
    options = ", items=[['lepton_*'], ['jet_*']]"
    samples = _prepare(tmp_path, "pairs.root", where="jet_pt > 2", options=options)
    assert (
        samples.ragged("jet_pt").lengths.tolist() == [1] * 50
        and samples.ragged("lepton_pt").lengths.tolist() == [2] * 50
    )


def test_columns_declared_as_the_same_items_must_have_equal_lengths(tmp_path: Path) -> None:
    _tree(tmp_path / "a.root", {"pt": _lists([1.0], [2, 3]), "eta": _lists([1.0], [2, 2])})
    with pytest.raises(DataError, match="'pt' and 'eta' do not describe the same items: event 1 has 3 and 2 items"):
        _prepare(tmp_path, "a.root", options=", items=[['pt', 'eta']]")


def test_collections_of_a_file_are_not_joined_although_they_are_as_many(tmp_path: Path) -> None:
    pairs = {name: ak.zip({"pt": _lists([1.0, 2.0]), "eta": _lists([1.0, 3.0])}) for name in ("jet", "muon")}
    _rntuple(tmp_path / "a.root", pairs)
    table = readers.read(str(tmp_path / "a.root"))[0]
    assert len(columns_sharing_offsets(table)) == 2


def test_columns_of_a_collection_in_an_rntuple_are_features(tmp_path: Path) -> None:
    jets = _jets()
    label = (ak.to_numpy(ak.sum(jets["pt"], axis=1)) > 100).astype("i8")
    _rntuple(tmp_path / "nano.root", {"Jet_pt": jets["pt"], "Jet_eta": jets["eta"], "top": label})
    (tmp_path / "net.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.layer = nn.Linear(2, 2)\n"
        "    def forward(self, jets, mask):\n"
        "        return (self.layer(jets) * mask[..., None]).sum(1)\n"
    )
    words = f"train --model {tmp_path}/net.py:Net --train {tmp_path}/nano.root --features Jet_pt,Jet_eta --labels top"
    ended = command(*words.split(), "--epochs", "1", "--output", tmp_path / "run")
    assert ended.code == 0, ended.err
    predicted = command("predict", tmp_path / "run", "--input", tmp_path / "nano.root", "--output", tmp_path / "s.h5")
    assert predicted.code == 0 and len(clew.Table.load(tmp_path / "s.h5")) == 400


def test_features_of_different_items_are_refused_with_the_event(tmp_path: Path) -> None:
    _rntuple(tmp_path / "a.root", {"pt": _lists([1.0], [2, 3]), "eta": _lists([1.0], [2, 2]), "y": np.array([0, 1])})
    (tmp_path / "net.py").write_text("from torch import nn\ndef build():\n    return nn.Linear(2, 2)\n")
    words = f"train --model {tmp_path}/net.py:build --train {tmp_path}/a.root --features pt,eta --labels y"
    ended = command(*words.split(), "--output", tmp_path / "run")
    assert ended.code == 2
    assert "'pt' and 'eta' do not describe the same items: event 1 has 3 and 2 items" in ended.err


def test_columns_that_could_be_the_same_items_name_the_remedy() -> None:
    table = clew.Table(
        {"pt": clew.Ragged.from_lists([[1.0], [2.0, 3.0]]), "eta": clew.Ragged.from_lists([[1], [2, 3]])}
    )
    from clew.data.transforms import Compute, SameItems

    with pytest.raises(clew.errors.ConfigError, match="add the transform same_items"):
        Compute(column="x", expression="pt * eta")(table)
    assert "x" in Compute(column="x", expression="pt * eta")(SameItems(columns=("pt", "eta"))(table))
