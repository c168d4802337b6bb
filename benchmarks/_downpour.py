"""Downpour on the MLP of the originals, in the processes that a launcher started, or with local workers."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

import clew

BATCH = 100


def data(samples: int) -> tuple[Any, Any]:
    """Random pictures and classes."""
    rng = np.random.default_rng(1)
    return rng.random((samples, 784), np.float32), rng.integers(0, 10, samples)


if __name__ == "__main__":
    options = json.loads(sys.argv[1])
    clew.train(
        f"{Path(__file__).parent / '_pictures.py'}:wide",
        data(options["samples"]),
        data(BATCH),
        loss="cross_entropy",
        strategy="downpour",
        asynchronous=options["asynchronous"],
        workers=int(sys.argv[2]) if len(sys.argv) > 2 else 1,
        threads=1,
        epochs=options["epochs"],
        batch_size=BATCH,
        output=options["output"],
        trace=False,
        monitor_seconds=None,
    )
