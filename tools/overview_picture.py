"""Draw docs/images/overview.png, the picture of the README: an event with pile-up, and the head of a run's report.

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
_PT = (1.0, 20.0)
"""GeV: the range of the colours. Tracks below it are drawn in grey."""


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
    parts = [_scaled(_event(run, dataset)), _scaled(_report_head(run / "report.html"))]
    picture = Image.new("RGB", (_WIDTH, sum(part.height for part in parts)), _BACKGROUND)
    for number, part in enumerate(parts):
        picture.paste(part, (0, sum(each.height for each in parts[:number])))
    target = Path(__file__).parents[1] / "docs" / "images" / "overview.png"
    picture.quantize(256).save(target, optimize=True)


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
        figure, axes = plt.subplots(1, 2, figsize=(14, 6.1), facecolor=_BACKGROUND, width_ratios=(1, 1.3))
        _draw(axes[0], (x, y), [(each.pt, each.x, each.y) for each in helices])
        along = [(each.pt, each.z, _signed(each.x, each.y, each.y[-1:])) for each in helices]
        _draw(axes[1], (z, _signed(x, y, y)), along)
        axes[0].set(aspect="equal", title="across the beam")
        axes[1].set(title="along the beam")
        figure.subplots_adjust(left=0.01, right=0.99, top=0.93, bottom=0.01, wspace=0.02)
        content = io.BytesIO()
        figure.savefig(content, dpi=200, facecolor=_BACKGROUND)
    return Image.open(content).convert("RGB")


def _signed(x: Floats, y: Floats, side: Floats) -> Floats:
    """The distance from the beam, negative where `side` is."""
    return np.hypot(x, y) * np.where(side < 0, -1, 1)


def _draw(axis: Any, hits: tuple[Floats, Floats], tracks: list[tuple[float, Floats, Floats]]) -> None:
    axis.scatter(*hits, s=0.5, color="#58708c", alpha=0.35, linewidths=0, rasterized=True)
    norm, colors = LogNorm(*_PT), plt.get_cmap("plasma")
    for pt, *line in sorted(tracks, key=lambda each: each[0]):
        if pt < _PT[0]:
            axis.plot(*line, color="#5b84b1", linewidth=0.3, alpha=0.25)
        else:
            axis.plot(*line, color=colors(0.35 + 0.65 * float(norm(min(pt, _PT[1])))), linewidth=1.2, alpha=0.95)
    axis.axis("off")


def _report_head(report: Path) -> Image.Image:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1000, "height": 200}, device_scale_factor=2, color_scheme="dark")
        page.goto(report.absolute().as_uri())
        content = page.screenshot()
        browser.close()
    return Image.open(io.BytesIO(content)).convert("RGB")


def _scaled(picture: Image.Image) -> Image.Image:
    return picture.resize((_WIDTH, picture.height * _WIDTH // picture.width), Image.Resampling.LANCZOS)


if __name__ == "__main__":
    main()
