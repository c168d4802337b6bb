"""How fast synthetic liquid-argon events are generated, how sparse they are, and how well they compress in memory.

Events of the recipe's generator at 3600 x 3600, alone and under 40 cosmic muons. Tiles are those that a pooling by 5
sees, once and twice. If the public ProtoDUNE-HD frame is available (CLEW_TEST_DATA), it is measured too.
The store is the one that `train.loading.keep: compressed` uses, over a dataset of `clew prepare`; its rival is what the
study did: dense images in memory, compressed by blosc2 with LZ4, one by one. Both return arrays, with one thread.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import blosc2
import numpy as np
from _contest import Sheet, main, options

import clew
from clew import Dataset, Table
from clew.data.dataset.sample_store import open_store
from clew.recipes.lartpc import event_files, images
from clew.recipes.lartpc.columns import CHARGE, CLASSES, INDEX, LABEL, SIZE
from clew.recipes.lartpc.generate.config import LArTPCGeneratorConfig
from clew.recipes.lartpc.generate.events import VERSION, simulate

COSMICS = 40
DENSE = 4 * SIZE[0] * SIZE[1]
"""Bytes of an image."""
FRAME = "lartpc/wire-cell-toolkit/protodunehd-sp-frames-anode1.tar.bz2"
HELD = 30_000
"""Events of the study's training sample."""


def generating(sheet: Sheet, quick: bool) -> dict[str, Table]:
    """Both kinds of events, and the speed of generating them."""
    tables = {}
    simulate(1, 1)
    for name, config, count in (
        ("single", LArTPCGeneratorConfig(), 80 if quick else 320),
        ("overlaid", LArTPCGeneratorConfig(cosmics=COSMICS), 16 if quick else 48),
    ):
        start = time.process_time()
        tables[name] = simulate(count, 1, config=config)
        rate = count / (time.process_time() - start)
        if name == "single":
            sheet.bar("single particles made", rate, 20, "events/CPU-second")
        else:
            sheet.state(f"events under {COSMICS} cosmic muons made", rate, "events/CPU-second")
    return tables


def tiles(events: Table, by: int, size: tuple[int, int]) -> float:
    """The share of squares of this size that are not empty, in percent."""
    small = images.shrink_images(events, size, by)
    return float(100 * small.ragged(INDEX).lengths.mean() / (-(-size[0] // by) * -(-size[1] // by)))


def emptiness(sheet: Sheet, events: Mapping[str, Table]) -> None:
    single = events["single"]
    pixels = SIZE[0] * SIZE[1] / 100
    for place, name in enumerate(CLASSES):
        pixel_counts = single.ragged(INDEX).lengths[single.fixed(LABEL) == place]
        sheet.state(f"pixels that are not zero, {name}", float(pixel_counts.mean() / pixels), "%")
    frame = Path(os.environ.get("CLEW_TEST_DATA", "../shared/data")) / FRAME
    everything = {name: (table, SIZE) for name, table in events.items()}
    if frame.is_file():
        everything["ProtoDUNE-HD frame"] = (
            clew.concat(list(event_files.read_events(str(frame), (2560, 5999)))),
            (2560, 5999),
        )
    for name, (table, size) in everything.items():
        for by in (1, 5, 25):
            sheet.state(f"{by} x {by} that are not zero, {name}", tiles(table, by, size), "%")


def rate(work: Callable[[], Any], min_seconds: float) -> float:
    """Calls per CPU second."""
    work()
    start, times = time.process_time(), 0
    while time.process_time() - start < min_seconds:
        work()
        times += 1
    return times / (time.process_time() - start)


def storing(sheet: Sheet, folder: Path, name: str, events: Table, quick: bool) -> None:
    """The recipe's store against dense images."""
    blosc2.set_nthreads(1)
    path = folder / f"{name}.h5"
    events.save(path)
    dataset: Dataset = clew.prepare(
        "lartpc", input=[str(path)], output=str(folder / name), workers=1, split={"train": 1.0}
    )
    count, min_seconds = dataset.splits["train"], 0.3 if quick else 2.0
    columns = (INDEX, CHARGE, LABEL)
    store = open_store(dataset, "train", keep="compressed", columns=columns, block=16)
    held, raw = store.facts["bytes"] / count, store.facts["raw_bytes"] / count
    reads = rate(lambda: store.read(np.arange(16)), min_seconds) * 16
    image = images.dense_image(events.ragged(INDEX)[2], events.ragged(CHARGE)[2], SIZE)
    packed = blosc2.compress2(image, typesize=4, codec=blosc2.Codec.LZ4, nthreads=1)
    target = np.empty_like(image)
    dense = rate(lambda: blosc2.decompress2(packed, dst=target, nthreads=1), min_seconds)
    sheet.state(f"{name}: an event as pixels", raw / 1e6, "MB")
    sheet.state(f"{name}: the same, compressed", held / 1e6, "MB")
    sheet.state(f"{name}: compressed pixels against the dense image", DENSE / held, "times smaller")
    sheet.state(f"{name}: dense image by LZ4", DENSE / len(packed), "times smaller")
    sheet.state(f"{name}: {HELD:,} events, compressed pixels", held * HELD / 1e9, "GB")
    sheet.state(f"{name}: pixels decompressed", reads * raw / 1e9, "GB/s a core")
    sheet.state(f"{name}: that is, of images", reads * DENSE / 1e9, "GB/s a core")
    sheet.state(f"{name}: dense images decompressed", dense * DENSE / 1e9, "GB/s a core")
    sheet.bar(f"{name}: events/s from pixels against dense", reads / dense, 1.0, "times")


def measure(sheet: Sheet, folder: Path, arguments: argparse.Namespace) -> Mapping[str, Any]:
    os.environ.setdefault("CLEW_CACHE", str(folder / "cache"))
    events = generating(sheet, arguments.quick)
    emptiness(sheet, events)
    for name, table in events.items():
        storing(sheet, folder, name, table, arguments.quick)
    return {"generator": VERSION, "synthetic": True, "size": SIZE}


if __name__ == "__main__":
    sys.exit(main(measure, options(__doc__)))
