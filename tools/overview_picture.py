"""Draw docs/images/overview.png, the picture of the README: an event with pile-up, and a part of the run's report.

    clew data generate triplets --events 32 --set gun.particles=ttbar-like --set gun.pileup=100 --output events
    clew prepare triplets --set sectors.number=8 --input events --output sectors
    clew prepare triplets --input events --output whole
    clew train triplets --set sectors.number=8 --dataset sectors --output runs/triplets
    clew evaluate runs/triplets --dataset whole
    python tools/overview_picture.py runs/triplets whole

Needs pyacts (extra hep), Chromium and playwright.
"""

from __future__ import annotations

import io
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import LogNorm
from numpy.typing import NDArray
from PIL import Image
from playwright.sync_api import sync_playwright

import clew

Floats = NDArray[np.float64]

_WIDTH = 1400
_BACKGROUND = "#0d1117"
_TEXT = "#c9d1d9"
_FIELD = 2.0
"""Tesla, along the beam."""
_PT = (1.0, 10.0)
"""GeV: the range of the colours. Tracks below it are not drawn."""
_PLOTS = ("Efficiency at 75% against pT", "Efficiency at 75% against pseudorapidity")


@dataclass
class Helix:
    """A circle in x and y through the beam, and a line of z along its arc."""

    x: Floats
    y: Floats
    z: Floats
    pt: float

    @classmethod
    def through(cls, x: Floats, y: Floats, z: Floats) -> Helix:
        """Fit the hits of a track, in mm, and return points from the beam to the outermost hit."""
        centre, *_ = np.linalg.lstsq(2 * np.stack([x, y], axis=1), x**2 + y**2, rcond=None)
        radius = float(np.hypot(*centre))
        start = np.arctan2(-centre[1], -centre[0])
        turned = np.angle(np.exp(1j * (np.arctan2(y - centre[1], x - centre[0]) - start)))
        slope, offset = np.polyfit(turned, z, 1)
        turns = np.linspace(0, turned[np.argmax(np.abs(turned))], 60)
        around = start + turns
        return cls(
            centre[0] + radius * np.cos(around),
            centre[1] + radius * np.sin(around),
            offset + slope * turns,
            0.3 * _FIELD * radius / 1000,
        )


def main() -> None:
    """Draw both parts and join them."""
    run, dataset = Path(sys.argv[1]), sys.argv[2]
    parts = [_scaled(_event(run, dataset)), _scaled(_report(run / "report.html"))]
    picture = Image.new("RGB", (_WIDTH, sum(part.height for part in parts)), _BACKGROUND)
    for number, part in enumerate(parts):
        picture.paste(part, (0, sum(each.height for each in parts[:number])))
    target = Path(__file__).parents[1] / "docs" / "images" / "overview.png"
    picture.quantize(256, kmeans=3).save(target, optimize=True)


def _event(run: Path, dataset: str) -> Image.Image:
    """The event of the test split with the most hits, across and along the beam, with the tracks that were found."""
    table = clew.predict(str(run), data=dataset, columns=["x", "y", "z"])
    number = int(np.argmax(table.ragged("x").lengths))
    x, y, z = (table.ragged(name)[number].astype(np.float64) for name in "xyz")
    found = table.ragged("found_track")[number]
    tracks = [found == each for each in np.unique(found[found >= 0])]
    helices = [Helix.through(x[mask], y[mask], z[mask]) for mask in tracks]
    print(len(x), "hits,", len(tracks), "tracks,", sum(each.pt > _PT[0] for each in helices), "above", _PT[0], "GeV")  # noqa: T201
    with plt.rc_context({"text.color": _TEXT, "font.size": 11}):
        figure, axes = plt.subplots(1, 2, figsize=(14, 5.6), facecolor=_BACKGROUND, width_ratios=(1, 1.3))
        _draw(axes[0], (x, y), [(each.pt, each.x, each.y) for each in helices])
        along = [(each.pt, each.z, _signed(each.x, each.y, each.y[-1:])) for each in helices]
        _draw(axes[1], (z, _signed(x, y, y)), along)
        axes[0].set(aspect="equal", title="across the beam")
        axes[1].set(title="along the beam")
        figure.subplots_adjust(left=0.01, right=0.99, top=0.93, bottom=0.01, wspace=0.02)
        content = io.BytesIO()
        figure.savefig(content, dpi=200, facecolor=_BACKGROUND)
    return _opened(content.getvalue())


def _signed(x: Floats, y: Floats, side: Floats) -> Floats:
    """The distance from the beam, negative where `side` is."""
    return np.hypot(x, y) * np.where(side < 0, -1, 1)


def _draw(axis: Any, hits: tuple[Floats, Floats], tracks: list[tuple[float, Floats, Floats]]) -> None:
    axis.scatter(*hits, s=1.2, color="#7d93ad", alpha=0.55, linewidths=0)
    norm, colors = LogNorm(*_PT), plt.get_cmap("plasma")
    for pt, *line in sorted(tracks, key=lambda each: each[0]):
        if pt >= _PT[0]:
            axis.plot(*line, color=colors(0.3 + 0.7 * float(norm(min(pt, _PT[1])))), linewidth=0.9, alpha=0.8)
    axis.axis("off")


def _report(report: Path) -> Image.Image:
    """The name and the facts of the run, and two plots of its evaluation, side by side."""
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=arguments)
        page = browser.new_page(viewport={"width": 1240, "height": 900}, device_scale_factor=2, color_scheme="dark")
        page.goto(report.absolute().as_uri(), timeout=200_000)
        head = _opened(page.screenshot(clip={"x": 0, "y": 0, "width": 1240, "height": 84}, timeout=200_000))
        plots = []
        for title in _PLOTS:
            shown = page.locator("h3", has_text=title).first.locator("xpath=../..")
            shown.scroll_into_view_if_needed(timeout=200_000)
            page.wait_for_timeout(5000)
            plots.append(_opened(shown.screenshot(timeout=200_000)))
        browser.close()
    gap = (head.width - sum(picture.width for picture in plots)) // (len(plots) + 1)
    joined = Image.new("RGB", (head.width, head.height + plots[0].height + 40), head.getpixel((0, 0)))
    joined.paste(head, (0, 0))
    for number, picture in enumerate(plots):
        joined.paste(picture, (gap + number * (picture.width + gap), head.height))
    return joined


def _opened(content: bytes) -> Image.Image:
    return Image.open(io.BytesIO(content)).convert("RGB")


def _scaled(picture: Image.Image) -> Image.Image:
    return picture.resize((_WIDTH, picture.height * _WIDTH // picture.width), Image.Resampling.LANCZOS)


if __name__ == "__main__":
    main()
