"""ROOT: trees, branches, pieces, and damaged files."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import awkward as ak
import numpy as np
import pytest
import uproot

from clew import readers, storage
from clew.testing import assert_same_table, columns_sharing_offsets

from . import lists, problem, public, ragged, whole, write_root


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Ten events with a number, an array, lists with separate counters, and lists that share one."""
    lengths = np.arange(10) % 4
    both = ak.zip({"pt": ragged(lengths), "id": ragged(lengths, "i4")})
    columns = {
        "run": np.arange(10),
        "fix": np.arange(30, dtype="f4").reshape(10, 3),
        "jet": both,
        "hit": ragged(lengths),
    }
    write_root(tmp_path / "a.root", columns, step=4)
    return tmp_path / "a.root"


@pytest.mark.parametrize("chunk", [1, 3, 4, 7, 100])
def test_flat_and_jagged_branches_become_columns(path: Path, chunk: int) -> None:
    table = whole(path, chunk=chunk, columns=["run", "fix", "jet_id", "hit"], units={"hit": "mm"})
    assert [field.dtype for field in table.schema.values()] == ["<i8", "<f4", "<i4", "<f8"]
    assert table.fixed("run").tolist() == list(range(10)) and table.fixed("fix").shape == (10, 3)
    assert lists(table["hit"]) == ragged(np.arange(10) % 4).to_list() == lists(table["jet_id"])
    assert table.units == {"hit": "mm"}


def test_branches_that_share_a_counter_share_offsets(path: Path) -> None:
    for part in readers.read(str(path), chunk=3, items=[["hit"]]):
        assert columns_sharing_offsets(part) == {frozenset({"jet_pt", "jet_id"}), frozenset({"hit"})}


def test_a_glob_with_a_tree_stands_for_that_tree_of_every_file(path: Path) -> None:
    write_root(path.with_name("b.root"), {"run": np.arange(3)})
    locations = storage.expand(f"{path.parent}/*.root:tree")
    assert locations == [f"{path}:tree", f"{path.with_name('b.root')}:tree"]
    assert [len(whole(location)) for location in locations] == [10, 3]


def test_one_of_several_trees_must_be_named(tmp_path: Path) -> None:
    path = tmp_path / "a.root"
    with uproot.recreate(path) as file:
        for number, name in enumerate(("events", "deep/runs"), start=1):
            file.mktree(name, {"n": "int32"})
            file[name].extend({"n": np.arange(number, dtype="i4")})
    message = "several trees in it: events, deep/runs; name one after the file, as file.root:events"
    assert problem(path) == message
    assert (len(whole(f"{path}:events")), len(whole(f"{path}:deep/runs")), len(whole(path, tree="deep/runs"))) == (
        1,
        2,
        2,
    )
    assert problem(f"{path}:event") == "no tree 'event' in it; did you mean 'events'?"


def test_a_file_without_a_tree_is_reported(tmp_path: Path) -> None:
    with uproot.recreate(tmp_path / "a.root") as file:
        file["note"] = "text"
    assert problem(tmp_path / "a.root") == "no tree in it"


def test_a_tree_without_events_is_reported(tmp_path: Path) -> None:
    with uproot.recreate(tmp_path / "a.root") as file:
        file.mktree("tree", {"n": "int32"})
    assert problem(tmp_path / "a.root") == "no events in it"


def test_an_unknown_branch_has_a_nearest(path: Path) -> None:
    assert problem(path, columns=["rum"]) == "no branch 'rum'; did you mean 'run'?"
    assert problem(path, units={"rum": "1"}) == "no column 'rum'; did you mean 'run'?"


def test_strings_are_left_out_or_refused_by_name(tmp_path: Path) -> None:
    with uproot.recreate(tmp_path / "a.root") as file:
        file.mktree("tree", {"n": "int32", "word": "string"})
        file["tree"].extend({"n": np.arange(2, dtype="i4"), "word": ak.Array(["a", "b"])})
    assert "word" not in whole(tmp_path / "a.root")
    assert problem(tmp_path / "a.root", columns=["word"]).startswith("branch 'word' holds ")


def test_an_rntuple_is_read_like_a_tree(tmp_path: Path) -> None:
    lengths = np.arange(10) % 4
    both = ak.zip({"pt": ragged(lengths), "id": ragged(lengths, "i4")})
    with uproot.recreate(tmp_path / "a.root") as file:
        nested = ak.Array([[[1], [2]]] * 10)
        file["tree"] = {"run": np.arange(10), "jet": both, "word": ak.Array(["a"] * 10), "nested": nested}
    table = whole(tmp_path / "a.root", chunk=3)
    assert list(table) == ["jet.pt", "jet.id", "run"]
    assert lists(table["jet.pt"]) == ragged(lengths).to_list() and len(columns_sharing_offsets(table)) == 1
    assert problem(tmp_path / "a.root", columns=["nested"]).startswith("branch 'nested' holds std::vector<std::vector<")
    assert problem(tmp_path / "a.root", columns=["jet.ptt"]) == "no branch 'jet.ptt'; did you mean 'jet.pt'?"


@pytest.mark.parametrize("data", [b"some text, not a tree\n" * 50, b"root"])
def test_a_file_that_is_not_root_is_reported(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.root").write_bytes(data)
    assert problem(tmp_path / "a.root").startswith("not a readable ROOT file (")


def test_a_truncated_file_is_reported(path: Path) -> None:
    data = path.read_bytes()
    for size in (len(data) // 2, len(data) - 1):
        path.write_bytes(data[:size])
        assert problem(path) == f"cut short: it has {size} bytes of {len(data)}"
    path.write_bytes(data[:100])
    assert problem(path).startswith("not a readable ROOT file (")


def test_a_damaged_basket_is_reported_with_its_branch(path: Path) -> None:
    with uproot.open({path: None}) as file:
        key = file["tree"]["jet_id"].basket(0)
        begin = file["tree"]["jet_id"].member("fBasketSeek")[0] + key.member("fKeylen")
    data = bytearray(path.read_bytes())
    data[begin : begin + 20] = b"\x00" * 20
    path.write_bytes(data)
    assert problem(path, columns=["jet_id"]).startswith("branch 'jet_id' cannot be read (")
    assert len(whole(path, columns=["jet_pt"])) == 10


def test_nothing_is_left_open_and_no_thread_started(path: Path) -> None:
    before = set(threading.enumerate()), len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - one entry is its own
    for _ in range(3):
        assert_same_table(whole(path, chunk=4), whole(str(path) + ":tree"))
    assert (set(threading.enumerate()), len(os.listdir("/proc/self/fd"))) == before  # noqa: PTH208


@pytest.mark.slow
def test_the_public_nanoaod_events_are_read() -> None:
    path = public("particleflow/coffea/pfnano.root")
    assert problem(path).startswith("several trees in it: Events, LuminosityBlocks, Runs, MetaData, ParameterSets")
    table = whole(f"{path}:Events", columns=["event", "JetPFCands_pt", "JetPFCands_jetIdx", "Jet_pt"], chunk=4)
    with uproot.open({path: "Events"}) as tree:
        assert lists(table["JetPFCands_pt"]) == tree["JetPFCands_pt"].array().to_list()
    assert frozenset({"JetPFCands_pt", "JetPFCands_jetIdx"}) in columns_sharing_offsets(table)
    assert problem(f"{path}:MetaData") == "no branch of numbers in the tree"


def test_the_public_edm4hep_events_are_read_but_for_what_is_nested() -> None:
    path = public("particleflow/coffea/test_FCC_Winter2023.root")
    table = readers.read(str(path))[0]
    assert (len(table), len(table.schema)) == (100, 264)
    assert table.schema["ReconstructedParticles.covMatrix[10]"].shape == (10,)
    with uproot.open({path: "events"}) as tree:
        assert lists(table["Particle.PDG"]) == tree["Particle.PDG"].array().to_list()
    assert "_stringMap.first" not in table
