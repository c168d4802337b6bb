"""Trains with every strategy, one after the other, in the processes that a launcher started."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import clew
from tests.training import recipe

SETTINGS: dict[str, Any] = {
    "epochs": 2,
    "batch_size": 25,
    "threads": 1,
    "log_every": 1,
    "clip": 0.5,
    "optimizer": {"lr": 0.01},
    "schedule": {"name": "cosine", "warmup": 0.1},
    "ema": 0.9,
}
STRATEGIES: dict[str, Any] = {
    "allreduce": {},
    "accumulate": {"strategy": "allreduce", "accumulate": 3},
    "compressed": {"strategy": "allreduce", "compress": "bf16"},
    "sharded": {"strategy": "sharded"},
    "pipeline": {"strategy": "pipeline"},
    "disk": {"loading": {"keep": "disk", "window": 2}},
    "blosc": {"loading": {"keep": "compressed", "window": 2}},
}


def train(dataset: str, folder: Path, name: str, **more: Any) -> clew.Run:
    log = folder / f"{name}-samples"
    log.mkdir(parents=True, exist_ok=True)
    settings = {**SETTINGS, **STRATEGIES.get(name, {}), **more}
    chain = recipe("chain", log=str(log), fault="raise" if name == "failing" else "none")
    return clew.train(chain, dataset, output=folder / name, **settings)


if __name__ == "__main__":
    for chosen in sys.argv[3:] or STRATEGIES:
        train(sys.argv[1], Path(sys.argv[2]), chosen)
