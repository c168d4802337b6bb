"""Draw docs/images/overview.png, the picture of the README: an event of a tracking run, and the head of its report.

    make demo && python tools/overview_picture.py demo/runs/tracking-001

Needs Chromium and playwright.
"""

from __future__ import annotations

import io
import shutil
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from PIL import Image
from playwright.sync_api import sync_playwright

import clew

_WIDTH = 1200


def main() -> None:
    """Draw both parts and join them."""
    run = Path(sys.argv[1])
    parts = [_scaled(_tracks(run)), _scaled(_report_head(run / "report.html"))]
    picture = Image.new("RGB", (_WIDTH, sum(part.height for part in parts)), "white")
    for number, part in enumerate(parts):
        picture.paste(part, (0, sum(each.height for each in parts[:number])))
    target = Path(__file__).parents[1] / "docs" / "images" / "overview.png"
    picture.quantize(256).save(target, optimize=True)


def _tracks(run: Path) -> Image.Image:
    """The event of the test sample with the most true tracks: the truth, and what the network found."""
    table = clew.predict(str(run), columns=["x", "y", "z", "track"])
    event = int(np.argmax([len(np.unique(track)) for track in table.ragged("track")]))
    x, y, z = (table.ragged(name)[event] for name in "xyz")
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.6), subplot_kw={"projection": "3d"})
    for axis, column, title in zip(axes, ("track", "found_track"), ("true tracks", "found tracks"), strict=True):
        _draw(axis, (z, x, y), table.ragged(column)[event])
        axis.set(title=title, xlabel="z [mm]", ylabel="x [mm]", zlabel="y [mm]")
    figure.tight_layout()
    content = io.BytesIO()
    figure.savefig(content, dpi=150)
    return Image.open(content).convert("RGB")


def _draw(axis: Any, points: tuple[Any, Any, Any], track: Any) -> None:
    axis.scatter(*(each[track < 0] for each in points), s=4, color="silver")
    for number in np.unique(track[track >= 0]):
        axis.plot(*(each[track == number] for each in points), "o-", markersize=4)


def _report_head(report: Path) -> Image.Image:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1000, "height": 200}, device_scale_factor=2)
        page.goto(report.absolute().as_uri())
        content = page.screenshot()
        browser.close()
    return Image.open(io.BytesIO(content)).convert("RGB")


def _scaled(picture: Image.Image) -> Image.Image:
    return picture.resize((_WIDTH, picture.height * _WIDTH // picture.width))


if __name__ == "__main__":
    main()
