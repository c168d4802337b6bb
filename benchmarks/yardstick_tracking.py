"""ACTS events and ACTS' combinatorial Kalman filter on them: events/s of both, efficiency, purity.

One thread, one process, seconds of CPU time. `simulate_acts(events, seed, gun=...)` gives the same events, so that the
figures of a network can be compared with these. Needs pyacts (the extra `hep`); without it nothing is measured.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from _contest import Sheet, main, options

from clew import Table
from clew.recipes.tracking import acts_baseline
from clew.recipes.tracking.acts import simulate_acts
from clew.recipes.tracking.particle_gun import KINDS, ParticleGun

SEEDS = (4, 5, 6)  # seed 1 was used to set the filter
BAR = 0.95  # efficiency above 1 GeV, of the filter as of the networks


def one(gun: ParticleGun, seed: int, events: int) -> dict[str, float]:
    """Figures of one sample: its size, the speed of making it, and those of the filter."""
    simulate_acts(1, seed, gun=gun)  # the detector is built once
    start = time.process_time()
    sample = simulate_acts(events, seed, gun=gun)
    rate = events / (time.process_time() - start)
    return {"events_per_second_made": rate, **_size(sample), **acts_baseline.measure_filter(sample)}


def _size(sample: Table) -> dict[str, float]:
    pt = np.hypot(sample.ragged("px").values, sample.ragged("py").values)
    hits = sample.ragged("nhits").values[pt > 1]
    return {
        "hits_an_event": float(sample.ragged("x").lengths.mean()),
        "particles_an_event": float(sample.ragged("px").lengths.mean()),
        "particles_above_1_GeV": float((pt > 1).sum() / len(sample)),
        "share_of_them_with_8_hits": float((hits >= 8).mean()),
    }


def measure(sheet: Sheet, folder: Path, arguments: argparse.Namespace) -> Mapping[str, Any]:
    seeds, events = (SEEDS[:1], 50) if arguments.quick else (SEEDS, 300)
    if not importlib.util.find_spec("acts"):
        print("skipped: pyacts is not installed: pip install 'clew[hep]'")
        return {}
    for kind in sorted(KINDS):
        results = [one(ParticleGun.model_validate({"particles": kind}), seed, events) for seed in seeds]
        for name in (name for name in results[0] if not name.endswith("_error")):
            values = [figures[name] for figures in results]
            sheet.state(f"{kind}: {name}", float(np.mean(values)), "")
            if len(values) > 1:
                sheet.state(f"{kind}: {name}, spread", float(np.std(values)), "")
        sheet.bar(f"{kind}, efficiency", min(figures["efficiency_50"] for figures in results), BAR, "")
    return {"seeds": seeds, "events": events, "threads": 1}


if __name__ == "__main__":
    sys.exit(main(measure, options(__doc__, "one seed, 50 events of each kind")))
