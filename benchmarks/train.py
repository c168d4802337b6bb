"""How fast a training is, and what clew itself costs in it.

Contestants take turns in one process on one core, each in its own thread, which sleeps while another works: a
block of 20 steps of one, then of the next, in an order shuffled every round. Compared are 25th percentiles of block
times, because run against run scatters by 10% on a shared machine; the bare loop against itself shows what is left.
The GraphNet's steps are a hundred times as long, so that a block of 20 would never be undisturbed, and its batches
differ in size: its blocks have two steps, on the same batches for all in a round, and medians over rounds are compared.
clew is `clew.train` as users call it, with its records, validations and checkpoints; lightning runs at its fastest
(`barebones`). All have the same model, first weights, batch size and fused optimiser.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import importlib.util
import itertools
import logging
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from _contest import Over, Sheet, Times, Turn, in_turns, main, options, quartile, timed
from _loading import bucketing, compression, waiting
from _ranks import two_ranks
from _tasks import Flat, FlatTask, GraphTask, Task, Widths, against, flat_data, fresh, generated, ratio, with_clew
from torch import Tensor
from torch.optim import Adam

from clew import Dataset, Run
from clew.training import checkpoint
from clew.training.loop import _Loop

WIDE_STEPS = 4
"""Steps of a block of the MLP with 2 million parameters."""


def with_lightning(task: Task, turn: Turn) -> None:
    """lightning's Trainer without anything that can be left out, until `turn` raises."""
    import lightning

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.optimizer = fresh(task.recipe)

        def training_step(self, item: Any, number: int) -> Tensor:
            turn()
            return task.loss(self.model, item)

        def configure_optimizers(self) -> Adam:
            return self.optimizer

        def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
            return batch  # it is installed

    class Epochs:
        def __iter__(self) -> Iterator[Any]:
            return task.batches()

        def __len__(self) -> int:  # without it, lightning fetches one batch more to see whether there is one
            return -(-task.dataset.splits["train"] // task.size)

    trainer = lightning.Trainer(accelerator="cpu", devices=1, max_epochs=-1, barebones=True)
    trainer.fit(Module(), Epochs())


def contest(task: Task, folder: Path, rounds: int) -> Times:
    """The bare loop, itself again, clew and (where it is installed) lightning."""
    loops: dict[str, Callable[[Turn], None]] = {"bare loop": task.bare, "bare loop again": task.bare}
    loops["clew"] = partial(with_clew, task, folder)
    if importlib.util.find_spec("lightning"):
        loops["lightning"] = partial(with_lightning, task)
    return in_turns(loops, task.steps, rounds)


def single(sheet: Sheet, task: Task, folder: Path, rounds: int) -> None:
    """One process: clew against the bare loop and lightning."""
    times = contest(task, folder, rounds)
    against(sheet, task.name, task, times, "bare loop")
    overhead = quartile(times["clew"]) - quartile([*times["bare loop"], *times["bare loop again"]])
    if isinstance(task, FlatTask):
        sheet.bar("MLP: clew's own, a step", overhead / task.steps * 1e6, 20, "microseconds", lower=True)
    if "lightning" in times:
        # a step of the GraphNet takes 45 ms here and lightning's own part of it 1 ms: 1.5 times as fast is impossible
        threshold = 1.5 if isinstance(task, FlatTask) else 0.97
        sheet.bar(f"{task.name}: clew against lightning", ratio(task, times, "lightning", "clew"), threshold, "times")


def checkpoints(sheet: Sheet, data: Dataset, folder: Path, count: int) -> None:
    """The cost of one checkpoint per minute: the loop waits, and its steps are slower while the thread writes."""
    task = FlatTask(data, Flat(Widths(hidden=(2230, 2230, 2230))), 32)
    starts: list[float] = []
    with timed(_Loop, "_save") as saves, timed(checkpoint, "save_state") as writes:

        def turn() -> None:
            starts.append(time.perf_counter())
            if len(writes) == count and starts[-1] > writes[-1][1] + 0.5:
                raise Over

        with contextlib.suppress(Over):
            with_clew(task, folder, turn, checkpoint_minutes=3 / 60, log_every=10)
    held = statistics.median(end - begin for begin, end in saves[:count])
    size = max(path.stat().st_size for path in Run.open(folder).states())
    parameters = sum(each.numel() for each in task.recipe.model().parameters())
    sheet.state("checkpoint: parameters", parameters / 1e6, "million")
    sheet.state("checkpoint: state on disk", size / 1e6, "MB")
    sheet.state("checkpoint: written in the background in", statistics.median(b - a for a, b in writes), "s")
    slower = slowed(starts, saves, writes)
    sheet.state("checkpoint: the loop is held up for", held, "s")
    sheet.state("checkpoint: steps while it is written are slower by", slower, "s")
    sheet.bar("checkpoint: held up, at one a minute", 100 * held / 60, 2, "% of wall time", lower=True)
    sheet.bar("checkpoint: held up and slower", 100 * (held + slower) / 60, 2, "% of wall time", lower=True)


def slowed(
    starts: Sequence[float], saves: Sequence[tuple[float, float]], writes: Sequence[tuple[float, float]]
) -> float:
    """Seconds that the steps during one write take beyond those of quiet times."""

    def meet(begin: float, end: float, spans: Sequence[tuple[float, float]]) -> bool:
        return any(begin < b and a < end for a, b in spans)

    steps = [(a, b) for a, b in itertools.pairwise(starts) if not meet(a, b, saves)]
    during = [b - a for a, b in steps if meet(a, b, writes)]
    quiet = [b - a for a, b in steps if not meet(a, b, writes)]
    return (sum(during) - len(during) * statistics.median(quiet)) / len(writes)


def measure(sheet: Sheet, folder: Path, arguments: argparse.Namespace) -> Mapping[str, Any]:
    """Run all parts; return how many blocks of each contestant were counted."""
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")
    warnings.filterwarnings("ignore", module="lightning")
    quick = arguments.quick
    flat, graphs = flat_data(folder), generated("tracking", folder, 4096 if quick else 12_288)
    wide = FlatTask(flat, Flat(Widths(hidden=(1000, 1000, 1000))), steps=WIDE_STEPS)
    rounds = {"MLP": 100, "GraphNet": 30, "2 ranks": 20} if quick else {"MLP": 500, "GraphNet": 120, "2 ranks": 80}
    single(sheet, FlatTask(flat), folder / "mlp", rounds["MLP"])
    single(sheet, GraphTask(graphs), folder / "graphnet", rounds["GraphNet"])
    pairs: dict[str, FlatTask | GraphTask] = {"MLP of 2 million": wide, "GraphNet": GraphTask(graphs)}
    for title, task in pairs.items():
        times = two_ranks(task, folder / f"pair of {title}", rounds["2 ranks"])
        against(sheet, f"{title}, 2 ranks", task, times, "DDP")
    bucketing(sheet, 0.2 if quick else 1.0)
    checkpoints(sheet, flat, folder / "large", 2 if quick else 5)
    waiting(sheet, graphs, folder / "waiting", 1000 if quick else 3000)
    compression(sheet, graphs)
    return {
        "threads": 1,
        "steps_a_block": {"MLP": FlatTask.steps, "GraphNet": GraphTask.steps, "MLP of 2 million": WIDE_STEPS},
        "blocks": rounds,
        "lightning": importlib.metadata.version("lightning") if importlib.util.find_spec("lightning") else None,
    }


if __name__ == "__main__":
    sys.exit(main(measure, options(__doc__)))
