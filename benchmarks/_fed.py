"""End to end: `clew train` on images in compressed memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from _contest import Sheet
from _lartpc import Pixels
from _loading import rate as learned

import clew
from clew import Dataset, Ragged, Table
from clew.recipes.lartpc.recipe import LArTPC
from clew.recipes.lartpc.settings import ImageConfig, LArTPCConfig


def prepared(folder: Path, pixels: Pixels, recipe: LArTPC, events: int) -> Dataset:
    """A dataset that repeats these events."""
    index, charge, offsets = (each.numpy() for each in pixels)
    source = np.arange(events) % (len(offsets) - 1)
    places = np.concatenate([np.arange(offsets[k], offsets[k + 1]) for k in source])
    column = Ragged.from_lengths(index[places], np.diff(offsets)[source])
    fixed: dict[str, Any] = {"event": np.arange(events), "label": source % 5, "energy": np.ones(events, np.float32)}
    table = Table({**fixed, "index": column, "charge": column.share(charge[places])})
    folder.mkdir(parents=True)
    table.save(folder / "events.h5")
    return clew.prepare(recipe, input=[str(folder / "events.h5")], output=str(folder / "data"), workers=1)


def fed(sheet: Sheet, folder: Path, pixels: Pixels, side: int, *, batch: int, epochs: int, rate: float) -> None:
    """Images/s of `clew train` from compressed memory, decompression, transfer and optimiser included, against `rate`,
    that of the bare step with its batch in place."""
    recipe = LArTPC(LArTPCConfig(image=ImageConfig(rows=side, columns=side)))
    dataset = prepared(folder, pixels, recipe, events=16 * batch)
    run = clew.train(recipe, dataset, output=folder / "run", batch_size=batch, epochs=epochs, precision="bf16")
    images_per_second = learned(run, skip=2)
    facts = list(run.records(kind="validation"))[-1]["loading"]
    timed = [each for each in run.records(kind="step") if each["epoch"] >= 2]
    wait, seconds = (sum(each[name] for each in timed) for name in ("wait", "seconds"))
    sheet.state(f"fed, batch {batch}: clew train from compressed memory", images_per_second, "images/s")
    sheet.state("fed: compression", facts["raw_bytes"] / facts["bytes"], "times")
    sheet.state("fed: decompression", facts["read_bytes"] / facts["read_seconds"] / 1e9, "GB/s")
    sheet.state("fed: waiting for data", 100 * wait / seconds, "%")
    sheet.bar(f"fed, batch {batch}: of the rate with the batch in place", images_per_second / rate, 0.9, "")
