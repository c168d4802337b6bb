"""Fast simulation on an NVIDIA GPU: what clew costs in the training of the GAN, and the time per shower.

Training as in `fastsim.py`. Generation: the forward pass of `clew generate` (bf16, recorded as a CUDA graph), from
energies and seeds to voxels on the device, at 10 GeV, with batches of 1, 100 and 10,000; medians. Weights are random:
the speed does not depend on them. Without a GPU nothing is measured, but `--tiny` runs small networks on the CPU.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from _contest import Sheet, main, options
from _fastsim import GEANT4_RATE, network, parametric_dataset, shower_time, training_steps

LIMITS = {"flow": 1.0, "distilled": 0.05}
"""Milliseconds per shower at batch 10,000."""
TINY = ("model.width=12", "model.depth=1", "model.layer_width=16", "model.layer_depth=1")


def measure(sheet: Sheet, folder: Path, arguments: argparse.Namespace) -> Mapping[str, Any]:
    device = "cpu" if arguments.tiny else "cuda"
    if device == "cuda" and not torch.cuda.is_available():
        print("no NVIDIA GPU here; --tiny runs on the CPU")
        return {}
    dataset = parametric_dataset(folder, 512)
    seconds, more = (0.2, TINY) if arguments.tiny else (1.0 if arguments.quick else 4.0, ())
    for kind in ("gan", "flow", "distilled"):
        recipe, model = network(kind, dataset, *more)
        for size in (1, 100, 200 if arguments.tiny else 10_000):
            needed = shower_time(recipe, model, device, size, seconds)
            sheet.state(f"{kind}, batch {size:,}", needed, "ms per shower")
        if kind in LIMITS:
            sheet.bar(f"{kind}, batch {size:,}", needed, LIMITS[kind], "ms per shower", lower=True)
        sheet.state(f"{kind}, batch {size:,}: against Geant4 at 10 GeV", 1000 / needed / GEANT4_RATE, "times")
        if kind == "distilled":
            sheet.bar("distilled: against Geant4 at 10 GeV", 1000 / needed / GEANT4_RATE, 5000, "times")
    training_steps(sheet, folder, dataset, device, 2 if arguments.tiny else 5 if arguments.quick else 15)
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    return {"device": name}


if __name__ == "__main__":
    parser = options(__doc__)
    parser.add_argument("--tiny", action="store_true", help="small networks, on the CPU")
    sys.exit(main(measure, parser))
