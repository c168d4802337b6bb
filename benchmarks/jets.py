"""How fast jets become batches, and what clew costs in the training of a tagger.

Jets are random numbers in the columns of `clew data generate jets`, with the same numbers of constituents. One core.
Reading: all columns of a file, by uproot or pyarrow alone (to awkward arrays, or NumPy values and offsets; a thread),
and by clew up to batches of 512 jets as torch tensors, in turns; 25th percentiles of CPU time.
Training: the GRU tagger of the recipe `jets`, by `clew.train` as users call it and by a bare loop with the same
network, first weights, batches and optimiser, in turns of a few steps in one process; medians over rounds, as batches
differ. The rival against itself shows what is left of the noise.
The third bar, ONNX inference of every shipped network against torch's, is measured by `benchmarks/export.py`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import clew
from clew import Batch, Dataset, Ragged, Table, readers
from clew.data.dataset.batch import cut_batches
from clew.data.dataset.batch_builder import BatchBuilder
from clew.data.dataset.sampler import Sampler
from clew.recipes.jets import Jets
from clew.recipes.jets.network import padded
from clew.runs.environment import capture

READ_BAR, TRAIN_BAR = 1.3, 0.97
BATCH = 512
"""Jets per batch when reading."""
SIZE, STEPS = 128, 3
"""Size of batches, and of a block of steps, when training."""
Turn = Callable[[], None]
Times = dict[str, list[float]]


def jets(count: int, seed: int = 1) -> Table:
    """Random numbers in the columns of generated jets; lengths as those have."""
    rng = np.random.default_rng(seed)
    lengths = np.clip(rng.lognormal(np.log(55), 0.4, count), 3, 150).astype(int)
    pt = Ragged.from_lengths(rng.exponential(8, lengths.sum()).astype(np.float32) + 0.1, lengths)

    def part(scale: float) -> Ragged:
        return pt.share(rng.normal(0, scale, len(pt.values)).astype(np.float32))

    return Table(
        {
            "event": np.arange(count),
            "label": np.arange(count) % 5,
            "jet_pt": rng.uniform(500, 700, count),
            "jet_energy": rng.uniform(600, 1500, count),
            "part_pt": pt,
            "part_deta": part(0.2),
            "part_dphi": part(0.2),
            "part_eta": part(1.0),
            "part_phi": part(1.5),
            "part_energy": pt.share(pt.values * 1.5),
            "part_charge": pt.share(rng.integers(-1, 2, len(pt.values)).astype(np.int8)),
            "part_pid": pt.share(rng.choice([211, -211, 22, 130], len(pt.values)).astype(np.int32)),
        }
    )


def alternate(blocks: Mapping[str, Callable[[], float]], rounds: int) -> Times:
    """Seconds of every block of every contestant, in another order every round; the first round does not count."""
    times: Times = {name: [] for name in blocks}
    rng = np.random.default_rng(1)
    for _ in range(rounds + 1):
        for name in rng.permutation(list(blocks)).tolist():
            times[name].append(blocks[name]())
    return {name: each[1:] for name, each in times.items()}


def quartile(times: list[float]) -> float:
    return float(np.percentile(times, 25))


def cpu(work: Callable[[], None]) -> Callable[[], float]:
    def block() -> float:
        start = time.process_time()
        work()
        return time.process_time() - start

    return block


def write_root(table: Table, path: Path) -> None:
    import uproot

    array = table.to_awkward()
    with uproot.recreate(path) as file:
        tree = file.mktree("tree", {name: array[name].type.content for name in array.fields})
        for first in range(0, len(array), 5000):
            tree.extend({name: array[name][first : first + 5000] for name in array.fields})


def write_parquet(table: Table, path: Path) -> None:
    import awkward as ak
    from pyarrow import parquet

    parquet.write_table(ak.to_arrow_table(table.to_awkward(), extensionarray=False), path, row_group_size=20_000)


def by_uproot(path: Path, names: list[str]) -> None:
    import uproot

    with uproot.open(path, use_threads=False, num_workers=1) as file:
        file["tree"].arrays(names)


def by_pyarrow(path: Path, names: list[str]) -> None:
    """To values and offsets, which is all an array of lists is."""
    from pyarrow import parquet, types

    table = parquet.ParquetFile(path).read(columns=names, use_threads=False).combine_chunks()
    for column in table.columns:
        array = column.chunk(0)
        if types.is_list(array.type) or types.is_large_list(array.type):
            array.offsets.to_numpy()
            array = array.flatten()
        array.to_numpy(zero_copy_only=False)


def by_clew(location: str, names: list[str]) -> None:
    for table in readers.read(location, columns=names):
        for batch in cut_batches(table, BATCH, names):
            assert batch.size


def reading(kind: str, folder: Path, count: int, rounds: int) -> tuple[float, float, float]:
    """The time of clew over that of the library, the library over itself, and jets per second of clew."""
    table, path = jets(count), folder / f"jets.{kind}"
    (write_root if kind == "root" else write_parquet)(table, path)
    names, alone = list(table), by_uproot if kind == "root" else by_pyarrow
    rival = cpu(lambda: alone(path, names))
    times = alternate({"library": rival, "again": rival, "clew": cpu(lambda: by_clew(str(path), names))}, rounds)
    base = quartile(times["library"] + times["again"])
    control = quartile(times["again"]) / quartile(times["library"])
    return quartile(times["clew"]) / base, control, count / quartile(times["clew"])


class Over(BaseException):
    """Raised in a contestant to end it after its last block."""


class Contestant:
    """A loop in a thread that works only when it is its turn, a block of STEPS at a time."""

    def __init__(self, loop: Callable[[Turn], None]) -> None:
        self._go, self._back, self._steps = threading.Semaphore(0), threading.Semaphore(0), 0
        self._over, self._error, self._loop = False, None, loop
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._wait()

    _error: BaseException | None

    def turn(self) -> None:
        """Called by the loop at the start of every step."""
        if self._steps % STEPS == 0:
            self._back.release()
            self._go.acquire()
            if self._over:
                raise Over
        self._steps += 1

    def block(self) -> float:
        start = time.perf_counter()
        self._go.release()
        self._wait()
        return time.perf_counter() - start

    def end(self) -> None:
        self._over = True
        self._go.release()
        self._thread.join()

    def _wait(self) -> None:
        self._back.acquire()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        torch.set_num_threads(1)
        try:
            self._loop(self.turn)
        except Over:
            pass
        except BaseException as error:
            self._error = error
        self._back.release()


class Turning(Jets):
    """The shipped recipe, in turns."""

    turn: Turn = staticmethod(lambda: None)

    def step(self, model: nn.Module, batch: Batch) -> Any:
        self.turn()
        return super().step(model, batch)


def bare(dataset: Dataset, turn: Turn) -> None:
    """The loop that a user with data in memory would write: the same batches in the same order."""
    recipe, table = Jets(), dataset.read("train", columns=["constituents", "label"])
    torch.manual_seed(0)
    model, batches = recipe.model(), BatchBuilder(table)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    sampler = Sampler(len(table), SIZE, lengths=table.ragged("constituents").lengths)
    for epoch in range(1 << 30):
        for numbers in sampler.batches(epoch):
            turn()
            batch = batches.take(numbers)
            loss = cross_entropy(model(*padded(batch.ragged("constituents"))), batch["label"])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)


def by_train(dataset: Dataset, folder: Path, turn: Turn) -> None:
    """`clew.train`, until `turn` raises."""
    recipe = Turning()
    recipe.turn = turn
    settings: dict[str, Any] = {"batch_size": SIZE, "epochs": 100_000, "threads": 1, "optimizer": {"lr": 1e-3}}
    clew.train(recipe, dataset, output=folder, loading={"bucket": "constituents"}, **settings)


def training(folder: Path, count: int, rounds: int) -> tuple[float, float, float]:
    """The speed of clew over that of the bare loop, the loop over itself, and jets per second of clew."""
    jets(count).save(folder / "jets.h5")
    output, cache = str(folder / "dataset"), str(folder / "cache")
    dataset = clew.prepare("jets", input=[str(folder / "jets.h5")], output=output, cache=cache, workers=1)
    loops: dict[str, Callable[[Turn], None]] = {
        "bare": lambda turn: bare(dataset, turn),
        "again": lambda turn: bare(dataset, turn),
        "clew": lambda turn: by_train(dataset, folder / "run", turn),
    }
    contestants = {name: Contestant(loop) for name, loop in loops.items()}
    try:
        times = alternate({name: each.block for name, each in contestants.items()}, rounds)
    finally:
        for each in contestants.values():
            each.end()
    clew_times = np.array(times["clew"])
    ratio = float(np.median(np.concatenate([times["bare"] / clew_times, times["again"] / clew_times])))
    control = float(np.median(np.divide(times["bare"], times["again"])))
    return ratio, control, STEPS * SIZE / quartile(times["clew"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    count, rounds, turns = (20_000, 5, 20) if arguments.quick else (20_000, 15, 150)
    bars: list[dict[str, Any]] = []
    stated: dict[str, float] = {}

    def bar(name: str, value: float, limit: float, unit: str, *, lower: bool = False) -> None:
        ok = value <= limit if lower else value >= limit
        bars.append({"name": name, "value": value, "bar": limit, "unit": unit, "ok": bool(ok)})
        print(f"{name:52} {value:10,.3f} {unit:10} {'<=' if lower else '>='} {limit:<6g} {'ok' if ok else 'MISSED'}")

    def state(name: str, value: float, unit: str) -> None:
        stated[f"{name} [{unit}]"] = value
        print(f"  {name:50} {value:10,.3f} {unit}", flush=True)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for kind, library in (("root", "uproot"), ("parquet", "pyarrow")):
            ratio, control, rate = reading(kind, folder, count, rounds)
            bar(f"{kind} to batches: clew's time over {library}'s", ratio, READ_BAR, "times", lower=True)
            state(f"control, {library} against itself", control, "times")
            state(f"{kind} to batches", rate, "jets/CPU-s")
        ratio, control, rate = training(folder, 5000, turns)
        bar("GRU tagger: clew's speed over a bare loop's", ratio, TRAIN_BAR, "times")
        state("control, bare loop against itself", control, "times")
        state("GRU tagger, 57,285 parameters, batch 128", rate, "jets/s")
    if arguments.json:
        conditions = {"jets": count, "rounds": rounds, "turns": turns, "stated": stated, "environment": capture()}
        arguments.json.write_text(json.dumps({"bars": bars, "conditions": conditions}, indent=1) + "\n")
    return int(not all(each["ok"] for each in bars))


if __name__ == "__main__":
    sys.exit(main())
