"""End to end: clew's own loader, from compressed memory, feeds the step while the device works."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _contest import Sheet, seconds
from _lartpc import Pixels

import clew
from clew import Dataset, Ragged, Table, spec
from clew.dataset.batch import Batch
from clew.dataset.loader import Loader
from clew.recipes.lartpc.network import ParticleNet
from clew.train.strategies import make
from clew.train.supply import make_loader

BATCHES = 4
"""Different batches in the dataset; they come in another order every time."""


def prepared(pixels: Pixels, side: int, events: int, folder: Path) -> Dataset:
    """A dataset of so many events, these again and again."""
    index, charge, offsets = (each.numpy() for each in pixels)
    lists = Ragged(index, offsets)
    fixed = {"label": np.arange(len(lists)) % 5, "energy": np.ones(len(lists), dtype=np.float32)}
    whole = Table({**fixed, "index": lists, "charge": lists.share(charge)})
    whole.take(np.arange(events) % len(lists)).save(folder / "tracks.h5")
    recipe = spec.load("lartpc", [f"image.rows={side}", f"image.columns={side}"]).recipe
    where = {"output": str(folder / "data"), "cache": str(folder / "cache"), "split": {"train": 1.0}}
    return clew.prepare(recipe, input=[str(folder / "tracks.h5")], workers=1, **where)  # type: ignore[arg-type]


def opened(data: Dataset, side: int, batch: int, device: torch.device) -> Loader:
    """As `clew train lartpc` opens it."""
    loaded = spec.load("lartpc", [f"image.rows={side}", f"image.columns={side}", f"train.batch_size={batch}"])
    strategy = make(loaded.train, rank=0, ranks=1, store=None, device=device)
    return make_loader(loaded.recipe, loaded.train, data, strategy, device)


def endless(loader: Loader) -> Iterator[Batch]:
    epoch = 0
    while True:
        yield from (portion.parts[0] for portion in loader.epoch(epoch))
        epoch += 1


class Place:
    """Where the device learns from: of fixed size, as a captured step needs it. Pixels beyond the last offset do not
    count."""

    def __init__(self, room: int, batch: int, device: torch.device) -> None:
        kinds = ((room, torch.int32), (room, torch.float32), (batch + 1, torch.int64))
        self.tensors = tuple(torch.zeros(size, dtype=kind, device=device) for size, kind in kinds)

    def take(self, batch: Batch) -> None:
        index = batch.ragged("index")
        for to, source in zip(self.tensors, (index.values, batch["charge"], index.offsets), strict=True):
            to[: len(source)].copy_(source)


def fed(sheet: Sheet, pixels: Pixels, side: int, *, batch: int, steps: int, learner: Any, captured: Any) -> None:
    """The rate from compressed memory against that with the batch in place."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with tempfile.TemporaryDirectory() as folder:
        loader = opened(prepared(pixels, side, BATCHES * batch, Path(folder)), side, batch, device)
    batches, place = endless(loader), Place(int(pixels[2].diff().max()) * batch, batch, device)
    label = torch.arange(batch, device=device) % 5
    network = ParticleNet(side, side).to(device)
    place.take(next(batches))
    learn: Callable[[], None] = captured(learner(network, lambda: network(*place.tensors), label))
    settle = torch.cuda.synchronize if device.type == "cuda" else lambda: None

    def still() -> None:
        for _ in range(steps):
            learn()
        settle()

    def moving() -> None:
        for _ in range(steps):
            place.take(next(batches))
            learn()
        settle()

    still()
    moving()
    rates = [batch * steps / min(seconds(each) for _ in range(3)) for each in (still, moving)]
    loader.close()
    facts = loader.store.facts
    sheet.state(f"fed, batch {batch}: from compressed memory", rates[1], "images/s")
    sheet.state("fed: compression of lists of pixels", facts["raw_bytes"] / facts["bytes"], "times")
    sheet.state("fed: taken into memory and compressed", facts["raw_bytes"] / facts["pack_seconds"] / 1e9, "GB/s")
    sheet.state("fed: decompressed", facts["read_bytes"] / facts["read_seconds"] / 1e9, "GB/s")
    sheet.bar(f"fed, batch {batch}: of the rate with the batch in place", rates[1] / rates[0], 0.9, "")
