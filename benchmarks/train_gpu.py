"""How fast the tracking GraphNet trains on an accelerator: clew against the loop that a user would write.

Contestants take turns in one process, in blocks of steps on the same batches for all in a round; the device is waited
for before the clock is read. The plain loop makes a batch of a table in memory, sends it to the device and steps, one
after the other. clew is `clew.train` as users call it, with its records, validations and checkpoints. Medians over
rounds are compared; the plain loop against itself is the control. Where torch finds no accelerator nothing is measured.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from _contest import Sheet, Turn, in_turns, main, options
from _tasks import Graphs, GraphTask, against, generated, with_clew
from torch.optim import Adam

from clew.data.dataset.batch import to_batch
from clew.training.device import find_device

SIZES = (256, 32)
STEPS = 20


class DeviceTask(GraphTask):
    """The GraphNet on the device that clew would choose."""

    def bare(self, turn: Turn) -> None:
        device = find_device()
        torch.manual_seed(0)
        model = self.recipe.model().to(device)
        optimizer = Adam(model.parameters(), lr=1e-3, fused=True)
        for epoch in range(1 << 30):
            for numbers in self.sampler.batches(epoch):
                turn()
                batch = to_batch(self.table.take(numbers), self.recipe.columns).to(device)
                total, weight = self.recipe.loss(model(batch), batch)
                (total / weight).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)


def measure(sheet: Sheet, folder: Path, arguments: argparse.Namespace) -> Mapping[str, Any]:
    if not torch.accelerator.is_available():
        print("skipped: torch finds no accelerator here")
        return {}
    torch.set_num_threads(1)
    data, rounds = generated("tracking", folder, 8192 if arguments.quick else 49_152), 10 if arguments.quick else 60
    for size in SIZES:
        task = DeviceTask(data, Graphs(), size, STEPS)
        loops = {"plain loop": task.bare, "plain loop again": task.bare}
        loops["clew"] = partial(with_clew, task, folder / f"run-{size}")
        times = in_turns(loops, STEPS, rounds, torch.accelerator.synchronize)
        against(sheet, f"GraphNet, batches of {size}", task, times, "plain loop")
    return {"device": str(find_device()), "blocks": rounds, "steps_a_block": STEPS, "threads": 1}


if __name__ == "__main__":
    sys.exit(main(measure, options(__doc__)))
