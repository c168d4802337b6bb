"""The contract of readers, for every kind of file that clew reads."""

from __future__ import annotations

import bz2
import pickle
from pathlib import Path
from typing import Any

import awkward as ak
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import uproot

from clew.data.table import Ragged, Table
from clew.testing import ReaderContract

from . import ragged, write_root

EVENTS = 8000
LENGTHS = np.arange(EVENTS) % 7
"""Items per event. Every 7th event has none, except in text files, where every line is an item."""
OTHERS = np.where(np.arange(EVENTS) < 100, LENGTHS, LENGTHS // 2)
"""Lengths of other items: the same in the first pieces, by chance."""


def columns() -> dict[str, Any]:
    """Two lists of the same items, and one of other items."""
    return {"run": np.arange(EVENTS), "x": ragged(LENGTHS), "y": ragged(LENGTHS, "i4"), "z": ragged(OTHERS)}


def records() -> dict[str, Any]:
    """The same for ROOT, where the fields of a record are lists of the same items."""
    both = ak.zip({"x": ragged(LENGTHS), "y": ragged(LENGTHS, "i4")})
    return {"run": np.arange(EVENTS), "hit": both, "z": ragged(OTHERS)}


class TestText(ReaderContract):
    reader, file_name, events = "text", "events.txt", EVENTS
    options = {"layout": "bes3"}

    def write(self, path: Path) -> None:
        events = np.repeat(np.arange(EVENTS), LENGTHS + 1)
        rows = [f"{event}\t{row}.25\t2.5\t-3.125\t{row % 3}\t{row % 5 - 1}" for row, event in enumerate(events)]
        path.write_text("\n".join(rows) + "\n")

    def piece_options(self, events: int) -> dict[str, Any]:
        return {"chunk_mb": events * 5 * 22 / 1e6}


class TestTrackML(ReaderContract):
    reader, file_name, events = "trackml", "event000001000-hits.csv", 1
    reads_single_pieces = False

    def write(self, path: Path) -> None:
        hits = "".join(f"{i},{i}.5,2.5,3.5,8,2,{i}\n" for i in range(500))
        truth = "".join(f"{i},{i % 9},1,2,3,.1,.2,.3,.001\n" for i in reversed(range(500)))
        path.write_text("hit_id,x,y,z,volume_id,layer_id,module_id\n" + hits)
        companion = path.with_name(path.name.replace("hits", "truth"))
        companion.write_text("hit_id,particle_id,tx,ty,tz,tpx,tpy,tpz,weight\n" + truth)

    def piece_options(self, events: int) -> dict[str, Any]:
        return {}


class TestTableFile(ReaderContract):
    reader, file_name, events = "hdf5", "table.h5", EVENTS

    def write(self, path: Path) -> None:
        x = Ragged.from_lengths(np.arange(LENGTHS.sum(), dtype="f4"), LENGTHS)
        other = Ragged.from_lengths(np.arange(EVENTS), np.ones(EVENTS, dtype=int))
        columns: dict[str, Any] = {"run": np.arange(EVENTS), "x": x, "y": x.share(x.values * 2), "other": other}
        Table(columns, units={"x": "mm"}, index_of={"other": "x"}).save(path)


class TestPlainHdf5(ReaderContract):
    reader, file_name, events = "hdf5", "plain.h5", EVENTS

    def write(self, path: Path) -> None:
        with h5py.File(path, "w") as file:
            file["event/run"] = np.arange(EVENTS)
            file["image"] = np.arange(EVENTS * 6, dtype="f4").reshape(EVENTS, 2, 3)
            lists = np.array([np.arange(length, dtype="f4") for length in LENGTHS], dtype=object)
            file.create_dataset("x", (EVENTS,), h5py.vlen_dtype("f4"))[:] = lists


class TestParquet(ReaderContract):
    reader, file_name, events = "parquet", "events.parquet", EVENTS

    def write(self, path: Path) -> None:
        table = pa.table({name: pa.array(ak.to_list(values)) for name, values in columns().items()})
        pq.write_table(table, path, row_group_size=450)


class TestNpz(ReaderContract):
    reader, file_name, events = "npz", "events.npz", EVENTS
    options = {"offsets": {"x": "offsets", "y": "offsets"}}
    reads_single_pieces = False

    def write(self, path: Path) -> None:
        x = np.arange(LENGTHS.sum(), dtype="f4")
        np.savez(path, run=np.arange(EVENTS), x=x, y=x * 2, offsets=np.append(0, np.cumsum(LENGTHS)))


class TestPickle(ReaderContract):
    reader, file_name, events = "pickle", "events.pkl.bz2", EVENTS
    reads_single_pieces = False

    def write(self, path: Path) -> None:
        values = np.arange(LENGTHS.sum(), dtype="f4")
        events = np.split(np.stack([values, values * 2], axis=1), np.cumsum(LENGTHS)[:-1])
        path.write_bytes(bz2.compress(pickle.dumps({"X": events, "run": np.arange(EVENTS)}), 1))


class TestRootTree(ReaderContract):
    reader, file_name, events = "root", "tree.root", EVENTS

    def write(self, path: Path) -> None:
        write_root(path, records(), step=500)


class TestRootNtuple(ReaderContract):
    reader, file_name, events = "root", "ntuple.root", EVENTS
    reads_single_pieces = False

    def write(self, path: Path) -> None:
        with uproot.recreate(path) as file:
            file["tree"] = records()
