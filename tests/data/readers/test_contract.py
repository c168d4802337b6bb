"""The contract of every reader: one suite, run over all of them."""

from __future__ import annotations

import bz2
import contextlib
import os
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import awkward as ak
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import uproot
from fsspec.implementations.memory import MemoryFileSystem

from clew import readers
from clew.data.readers import FilePieces
from clew.data.table import Ragged, Table, concat
from clew.errors import DataError
from tests.data.table import assert_same, sharing

from . import problem, ragged, whole, write_root

EVENTS = 8000
LENGTHS = np.arange(EVENTS) % 7
"""Items per event. Every 7th event has none, except in text, where an event is its lines."""
OTHERS = np.where(np.arange(EVENTS) < 100, LENGTHS, LENGTHS // 2)
"""Lengths of other items, equal to `LENGTHS` in the first pieces."""


@dataclass(frozen=True)
class Case:
    """A kind of file: how to write one of `EVENTS` events, and how to read it in pieces of about this size."""

    kind: str
    name: str
    write: Callable[[Path], None]
    options: dict[str, Any] = field(default_factory=dict)
    size: Callable[[int], dict[str, Any]] = lambda events: {"chunk": events}
    partial: bool = True
    """Whether a piece can be read without the rest."""


def write_text(path: Path) -> None:
    events = np.repeat(np.arange(EVENTS), LENGTHS + 1)
    rows = [f"{event}\t{row}.25\t2.5\t-3.125\t{row % 3}\t{row % 5 - 1}" for row, event in enumerate(events)]
    path.write_text("\n".join(rows) + "\n")


def write_trackml(path: Path) -> None:
    hits = "".join(f"{i},{i}.5,2.5,3.5,8,2,{i}\n" for i in range(500))
    truth = "".join(f"{i},{i % 9},1,2,3,.1,.2,.3,.001\n" for i in reversed(range(500)))
    path.write_text("hit_id,x,y,z,volume_id,layer_id,module_id\n" + hits)
    truth_path = path.with_name(path.name.replace("hits", "truth"))
    truth_path.write_text("hit_id,particle_id,tx,ty,tz,tpx,tpy,tpz,weight\n" + truth)


def table() -> Table:
    x = Ragged.from_lengths(np.arange(LENGTHS.sum(), dtype="f4"), LENGTHS)
    other = Ragged.from_lengths(np.arange(EVENTS), np.ones(EVENTS, dtype=int))
    columns: dict[str, Any] = {"run": np.arange(EVENTS), "x": x, "y": x.share(x.values * 2), "other": other}
    return Table(columns, units={"x": "mm"}, index_of={"other": "x"})


def write_hdf5(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["event/run"] = np.arange(EVENTS)
        file["image"] = np.arange(EVENTS * 6, dtype="f4").reshape(EVENTS, 2, 3)
        file.create_dataset("x", (EVENTS,), h5py.vlen_dtype("f4"))[:] = np.array(
            [np.arange(length, dtype="f4") for length in LENGTHS], dtype=object
        )


def columns() -> dict[str, Any]:
    """Lists of the same items, and one list of other items."""
    return {"run": np.arange(EVENTS), "x": ragged(LENGTHS), "y": ragged(LENGTHS, "i4"), "z": ragged(OTHERS)}


def write_parquet(path: Path) -> None:
    table = pa.table({name: pa.array(ak.to_list(values)) for name, values in columns().items()})
    pq.write_table(table, path, row_group_size=450)


def write_npz(path: Path) -> None:
    x = np.arange(LENGTHS.sum(), dtype="f4")
    np.savez(path, run=np.arange(EVENTS), x=x, y=x * 2, offsets=np.append(0, np.cumsum(LENGTHS)))


def write_tree(path: Path) -> None:
    both = ak.zip({"x": ragged(LENGTHS), "y": ragged(LENGTHS, "i4")})
    write_root(path, {"run": np.arange(EVENTS), "hit": both, "z": ragged(OTHERS)}, step=500)


def write_rntuple(path: Path) -> None:
    both = ak.zip({"x": ragged(LENGTHS), "y": ragged(LENGTHS, "i4")})
    with uproot.recreate(path) as file:
        file["tree"] = {"run": np.arange(EVENTS), "hit": both, "z": ragged(OTHERS)}


def write_pickle(path: Path) -> None:
    values = np.arange(LENGTHS.sum(), dtype="f4")
    events = np.split(np.stack([values, values * 2], axis=1), np.cumsum(LENGTHS)[:-1])
    path.write_bytes(bz2.compress(pickle.dumps({"X": events, "run": np.arange(EVENTS)}), 1))


def bytes_of(events: int) -> dict[str, Any]:
    return {"chunk_mb": events * 5 * 22 / 1e6}


CASES = [
    Case("text", "events.txt", write_text, {"layout": "bes3"}, bytes_of),
    Case("trackml", "event000001000-hits.csv", write_trackml, size=lambda events: {}, partial=False),
    Case("hdf5", "table.h5", lambda path: table().save(path)),
    Case("hdf5", "plain.h5", write_hdf5),
    Case("parquet", "events.parquet", write_parquet),
    Case("npz", "events.npz", write_npz, {"offsets": {"x": "offsets", "y": "offsets"}}, partial=False),
    Case("pickle", "events.pkl.bz2", write_pickle, partial=False),
    Case("root", "tree.root", write_tree),
    Case("root", "ntuple.root", write_rntuple, partial=False),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("files")
    for case in CASES:
        case.write(made / case.name)
    return made


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> Case:
    reader_case: Case = request.param
    return reader_case


def pieces(case: Case, folder: Path, events: int = EVENTS * 2, **more: Any) -> FilePieces:
    return readers.read(str(folder / case.name), **case.options, **case.size(events), **more)


def test_a_file_is_recognised_by_its_name(case: Case, folder: Path) -> None:
    assert readers.kind_of(str(folder / case.name)) == case.kind
    assert type(pieces(case, folder).reader) is readers.find(case.kind)


@pytest.mark.parametrize("events", [197, 450, 1024])
def test_pieces_of_any_size_give_the_same_events(case: Case, folder: Path, events: int) -> None:
    parts = list(pieces(case, folder, events))
    if case.size(events):
        assert len(parts) > EVENTS / events / 2 > 1
    assert_same(concat(parts), whole(folder / case.name, **case.options, **case.size(EVENTS * 2)))


def test_all_pieces_have_the_same_columns_and_share_offsets_alike(case: Case, folder: Path) -> None:
    parts = pieces(case, folder, 13)[::40]
    assert all(part.schema == parts[0].schema for part in parts)
    assert all(sharing(part) == sharing(parts[0]) for part in parts)


def test_the_declared_columns_are_read(case: Case, folder: Path) -> None:
    read = pieces(case, folder)
    declared = read.reader.declared_schema()
    assert declared is None or declared == read[0].schema


def test_pieces_are_a_sequence(case: Case, folder: Path) -> None:
    read = pieces(case, folder, 1000)
    assert isinstance(read, Sequence)
    assert len(read) == len(list(read)) == len(read[:])
    assert_same(read[-1], read[len(read) - 1])
    assert_same(concat(read[-2:]), concat(list(read)[-2:]))
    with pytest.raises(IndexError):
        read[len(read)]


def test_pieces_travel_between_processes(case: Case, folder: Path) -> None:
    read = pieces(case, folder, 1000)
    back = pickle.loads(pickle.dumps(read))
    assert back == read and back.plan == read.plan
    assert_same(back[0], read[0])


def test_the_plan_is_made_once_and_again_for_a_file_that_changed(case: Case, folder: Path, tmp_path: Path) -> None:
    path = tmp_path / case.name
    path.write_bytes((folder / case.name).read_bytes())
    read = readers.read(str(path), **case.options, **case.size(1000))
    plan = read.plan
    assert read.plan is plan
    os.utime(path, ns=(0, 1))
    assert read.plan == plan and read.plan is not plan


def test_a_url_is_read_like_a_path(case: Case, folder: Path) -> None:
    for path in folder.iterdir():
        MemoryFileSystem().pipe(f"/contract/{path.name}", path.read_bytes())
    location = f"memory://contract/{case.name}"
    assert_same(whole(location, **case.options, **case.size(1000)), concat(list(pieces(case, folder))))


def test_a_missing_file_is_reported(case: Case, folder: Path) -> None:
    name = f"none/{case.name}"
    assert problem(folder / name, **case.options) == "cannot be read (no such file)"
    assert problem(f"memory://{name}", **case.options) == "cannot be read (no such file)"


def test_an_empty_file_is_reported(case: Case, tmp_path: Path) -> None:
    (tmp_path / case.name).write_bytes(b"")
    assert problem(tmp_path / case.name, **case.options)


@pytest.mark.parametrize("seed", range(12))
def test_a_damaged_file_is_a_data_error_or_still_good(case: Case, folder: Path, tmp_path: Path, seed: int) -> None:
    data = bytearray((folder / case.name).read_bytes())
    random = np.random.default_rng(seed)
    for place in random.integers(0, len(data), 40):
        data[place] = random.integers(256)
    (tmp_path / case.name).write_bytes(data if seed % 2 else data[: random.integers(len(data))])
    with contextlib.suppress(DataError):
        list(readers.read(str(tmp_path / case.name), **case.options, **case.size(1000)))


@pytest.mark.parametrize("case", [case for case in CASES if case.partial], ids=lambda case: case.name)
def test_a_piece_is_read_without_the_rest(case: Case, folder: Path) -> None:
    read = pieces(case, folder, 100)
    last = read[-1]
    before = _bytes_read()
    assert_same(read[-1], last)
    assert _bytes_read() - before < 0.3 * (folder / case.name).stat().st_size


def _bytes_read() -> int:
    """Bytes that this process has read so far with any library, counted by Linux."""
    text = Path("/proc/self/io").read_text()
    return int(text.partition("rchar: ")[2].split()[0])
