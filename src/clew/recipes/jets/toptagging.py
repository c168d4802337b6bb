"""The layout of the public top-tagging files: a data frame of pandas in HDF5, called `table`, in the format `table`.

A jet is a row: `E_0`, `PX_0`, `PY_0`, `PZ_0` to `PZ_199` of the hardest constituents, filled up with zeros, in GeV;
`is_signal_new` is 1 for top and 0 for QCD. Files are written without pandas and PyTables, and both read them.
`clew.readers` reads the layout, and the setting `data.padded` makes constituents of it.
"""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from clew import Table

CLASSES = ("QCD", "top")
"""The classes by `is_signal_new`."""
CONSTITUENTS = 200
MOMENTUM = ("E", "PX", "PY", "PZ")
TRUTH = ("truthE", "truthPX", "truthPY", "truthPZ")
"""The momentum of the top quark. Generated files have zeros."""
FLAGS = ("ttv", "is_signal_new")
"""`ttv` says which of the public files a jet is from: 0 for training, in generated files too."""


def write_top_tagging(jets: Table, path: Path) -> None:
    """Write jets of the generator in the public layout.

    Args:
        jets: Columns of `make_jets`; the label is 0 for QCD and 1 for top.
        path: The file.
    """
    values = np.zeros((len(jets), CONSTITUENTS * len(MOMENTUM) + len(TRUTH)), dtype=np.float32)
    pt, eta, phi = (jets.ragged(f"part_{name}").values.astype(np.float64) for name in ("pt", "eta", "phi"))
    energy = jets.ragged("part_energy")
    place = np.arange(len(pt)) - energy.offsets[energy.events]
    used = place < CONSTITUENTS
    for number, part in enumerate((energy.values, pt * np.cos(phi), pt * np.sin(phi), pt * np.sinh(eta))):
        values[energy.events[used], place[used] * len(MOMENTUM) + number] = part[used]
    flags = np.stack([np.zeros(len(jets), dtype=np.int64), jets.fixed("label").astype(np.int64)], axis=1)
    names = [f"{part}_{place}" for place in range(CONSTITUENTS) for part in MOMENTUM]
    temporary = path.with_name(f"{path.name}.{os.getpid()}.part")  # the file is written completely, or not at all
    try:
        with h5py.File(temporary, "w") as file:
            _write_frame(file, {"values_block_0": ([*names, *TRUTH], values), "values_block_1": (list(FLAGS), flags)})
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _write_frame(file: h5py.File, blocks: dict[str, tuple[list[str], Any]]) -> None:
    """Write a frame in the format `table` of pandas: records of the index and of one matrix per dtype."""
    count = len(next(iter(blocks.values()))[1])
    kinds = [(name, values.dtype, values.shape[1:]) for name, (_, values) in blocks.items()]
    records = np.zeros(count, dtype=[("index", np.int64), *kinds])
    records["index"] = np.arange(count)
    for name, (_, values) in blocks.items():
        records[name] = values
    _set(file, CLASS="GROUP", PYTABLES_FORMAT_VERSION="2.1", TITLE="", VERSION="1.0")
    group = file.create_group("table")
    _set(group, CLASS="GROUP", TITLE="", VERSION="1.0", pandas_type="frame_table", pandas_version="0.15.2")
    _set(group, table_type="appendable_frame", encoding="UTF-8", errors="strict", nan_rep="nan", levels=1)
    _set(group, index_cols=[(0, "index")], values_cols=list(blocks), data_columns=[], info={})
    _set(group, non_index_axes=[(1, [name for names, _ in blocks.values() for name in names])])
    table = group.create_dataset("table", data=records, chunks=True, maxshape=(None,), compression="gzip", shuffle=True)
    _set(table, CLASS="TABLE", TITLE="", VERSION="2.7", NROWS=count, index_kind="integer")
    for number, field in enumerate(records.dtype.names or ()):
        _set(table, **{f"FIELD_{number}_NAME": field, f"FIELD_{number}_FILL": 0})
    for name, (names, values) in blocks.items():
        _set(table, **{f"{name}_kind": names, f"{name}_dtype": str(values.dtype)})


def _set(item: Any, **attributes: Any) -> None:
    """Set attributes as PyTables does: texts in UTF-8 and of fixed length, lists as pickles in ASCII."""
    for name, value in attributes.items():
        if isinstance(value, str):
            text = value.encode()
            item.attrs.create(name, text, dtype=h5py.string_dtype("utf-8", max(len(text), 1)))
        else:
            item.attrs[name] = np.int64(value) if isinstance(value, int) else np.bytes_(pickle.dumps(value, 0))
