"""`clew.predict(model, events)` for a chunk of events, as in a coffea processor, against onnxruntime called by hand.

Both get the same awkward array of 20 columns and return scores. By hand means: the columns are stacked and passed to a
session that was opened once, in one call. They take turns in one process, a block of calls each, in an order shuffled
every round. Compared are 25th percentiles of processor seconds per block, so that other work on the machine counts
little; the control compares the calls by hand with themselves.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np
import onnxruntime
import torch
from _contest import Sheet, alternate, main, options, quartile

import clew

THREADS, COLUMNS, BAR = 2, 20, 1.0
CHUNKS = (1_000, 5_000, 20_000, 100_000)
"""Events per chunk."""
BLOCK_EVENTS = 100_000
"""Events per block."""
NET = """
from torch import nn

def build():
    return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
"""


def measure(sheet: Sheet, folder: Path, arguments: argparse.Namespace) -> Mapping[str, Any]:
    torch.set_num_threads(THREADS)
    rounds = 15 if arguments.quick else 60
    for count in arguments.events or CHUNKS:
        (folder / str(count)).mkdir()
        calls = max(1, BLOCK_EVENTS // count)
        contestants = _contestants(folder / str(count), count)
        blocks = {name: _block(call, calls) for name, call in contestants.items()}
        times = {name: quartile(each) for name, each in alternate(blocks, rounds).items()}
        sheet.bar(f"chunks of {count:,} events, speed by hand = 1", times["by hand"] / times["clew"], BAR, "x")
        sheet.state("control: by hand against itself", times["by hand"] / times["control"], "x")
        sheet.state("processor time per chunk, clew", 1e3 * times["clew"], "ms")
        sheet.state("processor time per chunk, by hand", 1e3 * times["by hand"], "ms")
    return {"threads": THREADS, "columns": COLUMNS, "rounds": rounds}


def _contestants(folder: Path, count: int) -> dict[str, Callable[[], Any]]:
    values = np.random.default_rng(1).normal(size=(count, COLUMNS)).astype(np.float32)
    names = [f"x{number}" for number in range(COLUMNS)]
    events = ak.Array({name: values[:, place].copy() for place, name in enumerate(names)})
    model = _trained(folder, values[:2000], names)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = THREADS
    settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(model, settings)

    def by_hand() -> Any:
        stacked = np.stack([ak.to_numpy(events[name]) for name in names], axis=1)
        return session.run(None, {"features": stacked})[0]

    def ours() -> Any:
        return clew.predict(model, events)["output"]

    np.testing.assert_allclose(ak.to_numpy(ours()), by_hand(), rtol=1e-5, atol=1e-6)
    return {"by hand": by_hand, "control": by_hand, "clew": ours}


def _trained(folder: Path, values: Any, names: list[str]) -> Path:
    (folder / "net.py").write_text(NET)
    columns = {name: values[:, place] for place, name in enumerate(names)}
    clew.Table({**columns, "label": (values[:, 0] > 0).astype(np.int64)}).save(folder / "events.h5")
    source, build = str(folder / "events.h5"), str(folder / "net.py:build")
    run = clew.train(build, source, features=names, labels="label", epochs=1, output=folder / "run")
    return clew.export(run, to="onnx", output=folder / "model.onnx").path


def _block(call: Callable[[], Any], calls: int) -> Callable[[], float]:
    """Return a function that runs a block of calls, and returns the processor seconds per call."""

    def block() -> float:
        start = time.process_time()
        for _ in range(calls):
            call()
        return (time.process_time() - start) / calls

    return block


if __name__ == "__main__":
    parser = options(__doc__, "fewer rounds")
    parser.add_argument("--events", type=int, action="append", help=f"events per chunk; default: {CHUNKS}")
    raise SystemExit(main(measure, parser))
