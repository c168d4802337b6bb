"""Event displays: images, zoomed to the region with charge, on a logarithmic scale."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from numpy.typing import NDArray

from clew import Table, figure
from clew.recipes.lartpc.columns import CHARGE, CLASSES, ENERGY, EVENT, INDEX, LABEL, VERTEX

TILE, MIN_TILE_CHARGE = 20, 15.0
"""Side of a tile in pixels, and the minimum charge of a tile in the window: noise alone has less."""
OUTSIDE_FRACTION = 0.005
"""Fraction of the charge that the window may exclude at each end of an axis."""
MAX_POINTS = 360
"""Maximum number of pixels along a side of a panel. In larger images the maximum of each group of pixels is shown."""
MIN_CHARGE, MAX_CHARGE = 0.3, 30.0
"""Range of the colour scale, thousands of electrons."""
PAGE_WIDTH = 1150
"""Width of a picture on a page, pixels."""
_DPI = 110


class DisplayWindow(NamedTuple):
    """The wires and ticks that are shown: first, and one past the last."""

    wires: tuple[int, int]
    ticks: tuple[int, int]


def display_window(index: NDArray[np.int32], charge: NDArray[np.float32], size: tuple[int, int]) -> DisplayWindow:
    """Return the window that contains 99% of the charge along each axis, or the full image if it has no charge."""
    wire, tick = np.divmod(index.astype(np.int64), size[1])
    across = -(-size[1] // TILE)
    tile = wire // TILE * across + tick // TILE
    busy = (np.bincount(tile, charge) > MIN_TILE_CHARGE)[tile] if len(tile) else np.zeros(0, dtype=bool)
    if not busy.any():
        return DisplayWindow((0, size[0]), (0, size[1]))
    return DisplayWindow(
        *(_span(axis[busy], charge[busy], limit) for axis, limit in ((wire, size[0]), (tick, size[1])))
    )


def _span(place: NDArray[np.int64], charge: NDArray[np.float32], limit: int) -> tuple[int, int]:
    order = np.argsort(place, kind="stable")
    share = np.cumsum(charge[order], dtype=np.float64) / charge.sum(dtype=np.float64)
    low, high = (int(place[order][np.searchsorted(share, each)]) for each in (OUTSIDE_FRACTION, 1 - OUTSIDE_FRACTION))
    around = max(TILE, (high - low) // 15)
    return max(low - around, 0), min(high + around, limit)


def crop(
    index: NDArray[np.int32],
    charge: NDArray[np.float32],
    size: tuple[int, int],
    shown: DisplayWindow,
    points: int = MAX_POINTS,
) -> NDArray[np.float32]:
    """Return the window as an image (wires, ticks), with the maximum charge of each group of pixels."""
    wire, tick = np.divmod(index.astype(np.int64), size[1])
    (first, last), (begin, end) = shown
    inside = (wire >= first) & (wire < last) & (tick >= begin) & (tick < end)
    group = [max(1, -(-span // points)) for span in (last - first, end - begin)]
    shape = -(-(last - first) // group[0]), -(-(end - begin) // group[1])
    image = np.zeros(shape, dtype=np.float32)
    np.maximum.at(image, ((wire[inside] - first) // group[0], (tick[inside] - begin) // group[1]), charge[inside])
    return image


def title(events: Table, place: int) -> str:
    """What is known of an event, in a few words."""
    parts = []
    if LABEL in events:
        parts.append(CLASSES[int(events.fixed(LABEL)[place])])
    if ENERGY in events:
        parts.append(f"{1000 * float(events.fixed(ENERGY)[place]):.0f} MeV")
    return ", ".join([*parts, *([f"event {int(events.fixed(EVENT)[place])}"] if EVENT in events else [])])


def vertex(events: Table, place: int) -> tuple[float, float] | None:
    """Return wire and tick where the particle starts, or None if unknown."""
    if VERTEX not in events:
        return None
    wire, tick = events.fixed(VERTEX)[place].tolist()
    return wire, tick


def _with(shown: DisplayWindow, start: tuple[float, float] | None, size: tuple[int, int]) -> DisplayWindow:
    """Return the window, extended to contain the start."""
    if start is None:
        return shown
    spans = []
    for (low, high), place, limit in zip(shown, start, size, strict=True):
        spans.append((max(min(low, int(place) - TILE), 0), min(max(high, int(place) + TILE), limit)))
    return DisplayWindow(*spans)


def draw(events: Table, size: tuple[int, int], places: Sequence[int], *, across: int = 5) -> Figure:
    """Draw events side by side: wires to the right, ticks upwards. A red cross marks the start of the particle."""
    down = -(-len(places) // across)
    drawing = Figure(figsize=(3.3 * min(across, len(places)), 3.1 * down), layout="constrained")
    FigureCanvasAgg(drawing)
    colours = matplotlib.colormaps["viridis"].with_extremes(bad="white", under="white")
    shade: Any = None
    for number, place in enumerate(places):
        axes = drawing.add_subplot(down, min(across, len(places)), number + 1)
        index, charge = (events.ragged(name)[place] for name in (INDEX, CHARGE))
        shown = _with(display_window(index, charge, size), vertex(events, place), size)
        image = np.ma.masked_equal(crop(index, charge, size, shown), 0)
        extent = (*shown.wires, *shown.ticks)
        norm = LogNorm(MIN_CHARGE, MAX_CHARGE)
        shade = axes.imshow(
            image.T, origin="lower", aspect="auto", extent=extent, cmap=colours, norm=norm, interpolation="nearest"
        )
        if (start := vertex(events, place)) is not None:
            axes.plot(*start, marker="+", color="red", markersize=9, markeredgewidth=1.2, linestyle="none")
        axes.set_title(title(events, place), fontsize=9)
        axes.tick_params(labelsize=7)
    if shade is not None:
        bar = drawing.colorbar(shade, ax=drawing.axes, shrink=0.6, pad=0.01)
        bar.set_label("charge of a pixel [thousand electrons]", fontsize=8)
        drawing.supxlabel("wire", fontsize=9)
        drawing.supylabel("tick", fontsize=9)
    return drawing


def by_class(events: Table, *, per_class: int = 3) -> list[int]:
    """Return the first events of every class, ordered so that each class is a column; without labels the first ones."""
    if LABEL not in events:
        return list(range(min(len(events), per_class * len(CLASSES))))
    label = events.fixed(LABEL)
    events_of_class = [np.flatnonzero(label == number)[:per_class].tolist() for number in range(len(CLASSES))]
    return [rows[row] for row in range(per_class) for rows in events_of_class if row < len(rows)]


def png(drawing: Figure) -> bytes:
    """Return a drawing as the bytes of a PNG file."""
    stream = io.BytesIO()
    drawing.savefig(stream, format="png", dpi=_DPI)
    return stream.getvalue()


def event_displays(samples: Table, size: tuple[int, int], *, per_class: int = 3) -> figure.Figure:
    """Return one figure with some events of every class."""
    places = by_class(samples, per_class=per_class)
    drawing = draw(samples, size, places)
    wide, high = (round(side * _DPI) for side in drawing.get_size_inches())
    source = f"data:image/png;base64,{base64.b64encode(png(drawing)).decode()}"
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}">'
    svg += f'<image href="{source}" width="{wide}" height="{high}"/></svg>'
    drawn = figure.picture(svg, title="Events")
    drawn["layout"]["height"] = 60 + round(PAGE_WIDTH * high / wide)
    return drawn
