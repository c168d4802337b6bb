"""Fast simulation on a CPU: what clew costs in the training of the GAN, and showers per second on one core.

Training: `clew.train` as users call it against a bare torch loop with the same networks, losses, optimisers and batch
size, in turns of a few steps in one process, one thread; medians over rounds. The loop against itself shows the noise.
Generation: the models as ONNX files in onnxruntime with one thread, 10 GeV, batches of 100, showers per CPU second,
against the 4.2 showers/s of Geant4 on one core at this energy. Weights are random: the speed does not depend on them.
`distilled small` has a student of width 72 and depth 3.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _contest import Sheet, main, options
from _fastsim import GEANT4_RATE, network, parametric_dataset, training_steps

from clew.data.dataset.batch import to_batch
from clew.inference.export import formats
from clew.inference.flat_forward import FlatForward, find_inputs

SMALL = ("model.student_width=72", "model.student_depth=3", "model.layer_width=128", "model.layer_depth=3")
MODELS = {"gan": ("gan", ()), "distilled": ("distilled", ()), "distilled small": ("distilled", SMALL)}


def onnx_rate(recipe: Any, model: Any, path: Path, seconds: float) -> float:
    """Return showers per second of a model as an ONNX file, on one core."""
    import onnxruntime

    batch = to_batch(recipe.draw_inputs(np.arange(100), 1, {"energy": (10.0, 10.0)}), None)
    inputs = find_inputs(recipe, model, batch)
    described = tuple(item.described(item.of(batch), keep_float64=False) for item in inputs)
    tensors = tuple(item.of(batch) for item in described)
    flat = FlatForward(recipe, model, described).eval()
    formats.write_onnx(formats.ExportWork(flat, model, described, tensors))(path, "{}")
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])
    arrays = {item.name: tensor.numpy() for item, tensor in zip(described, tensors, strict=True)}
    times, start = list[float](), time.perf_counter()
    while len(times) < 3 or time.perf_counter() - start < seconds:
        begun = time.process_time()  # of one thread: other programs on the machine do not count
        session.run(None, arrays)
        times.append(time.process_time() - begun)
    return batch.size / float(np.median(times))


def measure(sheet: Sheet, folder: Path, arguments: argparse.Namespace) -> Mapping[str, Any]:
    torch.set_num_threads(1)
    dataset = parametric_dataset(folder, 512)
    training_steps(sheet, folder, dataset, "cpu", 3 if arguments.quick else 15)
    rates = {}
    for name, (kind, more) in MODELS.items():
        recipe, model = network(kind, dataset, *more)
        rates[name] = onnx_rate(recipe, model.eval(), folder / f"{name}.onnx", 1 if arguments.quick else 10)
        sheet.state(f"{name}, onnxruntime on one core", rates[name], "showers/s")
        sheet.state(f"{name}: against Geant4 at 10 GeV", rates[name] / GEANT4_RATE, "times")
    best = max(rates.values()) / GEANT4_RATE
    sheet.bar("onnxruntime, one core, fastest: against Geant4 at 10 GeV", best, 50, "times")
    return {"rates": rates}


if __name__ == "__main__":
    sys.exit(main(measure, options(__doc__)))
