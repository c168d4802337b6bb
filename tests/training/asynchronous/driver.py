"""Trains with one asynchronous strategy in the processes that a launcher started."""

import sys
from pathlib import Path
from typing import Any

import clew
from tests.training import recipe

if __name__ == "__main__":
    folder = Path(sys.argv[2])
    (folder / "samples").mkdir(exist_ok=True)
    chain = recipe("chain", log=str(folder / "samples"))
    settings: dict[str, Any] = {
        "epochs": 2,
        "batch_size": 25,
        "threads": 1,
        "optimizer": {"lr": 0.01},
        "strategy": sys.argv[3],
    }
    clew.train(chain, sys.argv[1], output=folder / "run", **settings)
