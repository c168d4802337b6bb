"""Predicts and evaluates in the processes that a launcher started; rank 0 writes a table and figures."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import clew
from clew.jobs.rank_info import current_rank

if __name__ == "__main__":
    run, folder = sys.argv[1], Path(sys.argv[2])
    path = clew.predict(run, output=folder / "out.h5", batch_size=16)
    evaluation = clew.evaluate(run, batch_size=16, name="launched")
    values = {name: each.value for name, each in evaluation.metrics.items()}
    (folder / f"{current_rank().rank}.json").write_text(json.dumps([str(path), evaluation.events, values]))
