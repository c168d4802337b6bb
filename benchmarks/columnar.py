"""`clew.predict(model, events)` for a chunk of events, as in a coffea processor, against onnxruntime called by hand.

Both get the same awkward array of 20 columns and return scores. By hand means: the columns are stacked and passed to a
session that was opened once, in one call. They take turns in one process, a block of calls each, in an order shuffled
every round. Compared are 25th percentiles of processor seconds per block, so that other work on the machine counts
little; the control compares the calls by hand with themselves.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np
import onnxruntime
import torch

import clew

THREADS, COLUMNS, BAR = 2, 20, 1.0
BLOCK_EVENTS = 200_000
"""Events per block."""
NET = """
from torch import nn

def build():
    return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--events", type=int, default=100_000, help="events per chunk")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    torch.set_num_threads(THREADS)
    with tempfile.TemporaryDirectory() as folder:
        contestants = _contestants(Path(folder), options.events)
        calls = max(1, BLOCK_EVENTS // options.events)
        times = _rounds(contestants, 15 if options.quick else 60, calls)
    by_hand, control, ours = (float(np.percentile(times[name], 25)) for name in ("by hand", "control", "clew"))
    results = {"events": options.events, "speed": by_hand / ours, "control": by_hand / control, "bar": BAR}
    print(f"clew.predict: {results['speed']:.2f} of the speed by hand (bar {BAR:g}, control {results['control']:.2f})")
    print(f"processor seconds per {options.events:,} events: clew {ours:.4f}, by hand {by_hand:.4f}")
    if options.json:
        options.json.write_text(json.dumps(results))


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


def _rounds(contestants: dict[str, Callable[[], Any]], rounds: int, calls: int) -> dict[str, list[float]]:
    """Processor seconds per call, one value per block."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name in random.sample(list(contestants), len(contestants)):
            start = time.process_time()
            for _ in range(calls):
                contestants[name]()
            times[name].append((time.process_time() - start) / calls)
    return times


if __name__ == "__main__":
    main()
