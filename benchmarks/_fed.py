"""End to end: batches out of compressed memory by clew's own loader, sent and learned from as `clew train` does it."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _contest import Sheet
from _lartpc import Pixels

import clew
from clew import Dataset, Ragged, Table
from clew.recipes.lartpc.recipe import LArTPC
from clew.recipes.lartpc.settings import Image, Settings
from clew.train.config import TrainConfig
from clew.train.strategies import Strategy
from clew.train.supply import make_loader


def prepared(folder: Path, pixels: Pixels, recipe: LArTPC, events: int) -> Dataset:
    """A dataset of these events, again and again."""
    index, charge, offsets = (each.numpy() for each in pixels)
    many = np.arange(events) % (len(offsets) - 1)
    places = np.concatenate([np.arange(offsets[k], offsets[k + 1]) for k in many])
    column = Ragged.from_lengths(index[places], np.diff(offsets)[many])
    fixed: dict[str, Any] = {"event": np.arange(events), "label": many % 5, "energy": np.ones(events, np.float32)}
    table = Table({**fixed, "index": column, "charge": column.share(charge[places])})
    folder.mkdir(parents=True)
    table.save(folder / "events.h5")
    return clew.prepare(recipe, input=[str(folder / "events.h5")], output=str(folder / "data"), workers=1)


def fed(sheet: Sheet, folder: Path, pixels: Pixels, side: int, *, batch: int, epochs: int, rate: float) -> None:
    """Images/s from compressed memory, decompression, transfer and the launching of every kernel included, against
    `rate`, that of the bare step with its batch in place."""
    recipe, device = LArTPC(Settings(image=Image(rows=side, columns=side))), torch.device("cuda")
    if not torch.cuda.is_available():
        device = torch.device("cpu")
    dataset = prepared(folder, pixels, recipe, events=5 * batch)
    config = TrainConfig.model_validate(
        {"dataset": str(dataset.path), "batch_size": batch, "loading": {"keep": "compressed"}}
    )
    loader = make_loader(recipe, config, dataset, Strategy(), device)
    model = recipe.model().to(device)
    optimizer = torch.optim.Adam(model.parameters(), 5e-4, fused=True)

    def learn(part: Any) -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.bfloat16) if device.type == "cuda" else contextlib.nullcontext():
            loss = recipe.loss(recipe.forward(model, part), part).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    def trained(epochs: range) -> int:
        seen = 0
        for epoch in epochs:
            for portion in loader.epoch(epoch):
                learn(portion.parts[0])
                seen += len(portion.numbers)
        if device.type == "cuda":
            torch.cuda.synchronize()
        return seen

    trained(range(1))
    waited, begun = loader.waited, time.perf_counter()
    images = trained(range(1, 1 + epochs))
    spent = time.perf_counter() - begun
    loader.close()
    facts: Any = loader.store.facts
    sheet.state(f"fed, batch {batch}: from compressed memory", images / spent, "images/s")
    sheet.state("fed: compression", facts["raw_bytes"] / facts["bytes"], "times")
    sheet.state("fed: decompression", facts["read_bytes"] / facts["read_seconds"] / 1e9, "GB/s")
    sheet.state("fed: waiting for data", 100 * (loader.waited - waited) / spent, "%")
    sheet.bar(f"fed, batch {batch}: of the rate with the batch in place", images / spent / rate, 0.9, "")
