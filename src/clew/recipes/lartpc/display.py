"""Event displays: images as they are, zoomed to where something is, charge on a logarithmic scale."""

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

TILE, BUSY = 20, 15.0
"""Pixels of a tile's side, and the charge in it above which it is shown: noise alone makes less."""
OUTSIDE = 0.005
"""Share of the charge that may be left outside at each end of an axis."""
POINTS = 360
"""Pixels of a panel's longer side, at most: beyond, the largest charge of each group is shown."""
LOWEST, HIGHEST = 0.3, 30.0
"""Thousands of electrons at the ends of the colours."""
PAGE = 1150
"""Pixels of the width that a page gives a picture."""
_DPI = 110


class Window(NamedTuple):
    """Wires and ticks that are shown: first and one past the last."""

    wires: tuple[int, int]
    ticks: tuple[int, int]


def window(index: NDArray[np.int32], charge: NDArray[np.float32], size: tuple[int, int]) -> Window:
    """Where all but a hundredth of the charge is, along either axis; the whole image where nothing is."""
    wire, tick = np.divmod(index.astype(np.int64), size[1])
    across = -(-size[1] // TILE)
    tile = wire // TILE * across + tick // TILE
    busy = (np.bincount(tile, charge) > BUSY)[tile] if len(tile) else np.zeros(0, dtype=bool)
    if not busy.any():
        return Window((0, size[0]), (0, size[1]))
    return Window(*(_span(axis[busy], charge[busy], most) for axis, most in ((wire, size[0]), (tick, size[1]))))


def _span(place: NDArray[np.int64], charge: NDArray[np.float32], most: int) -> tuple[int, int]:
    order = np.argsort(place, kind="stable")
    share = np.cumsum(charge[order], dtype=np.float64) / charge.sum(dtype=np.float64)
    low, high = (int(place[order][np.searchsorted(share, each)]) for each in (OUTSIDE, 1 - OUTSIDE))
    around = max(TILE, (high - low) // 15)
    return max(low - around, 0), min(high + around, most)


def crop(
    index: NDArray[np.int32], charge: NDArray[np.float32], size: tuple[int, int], shown: Window, points: int = POINTS
) -> NDArray[np.float32]:
    """The window as an image (wires, ticks), the largest charge of each group of pixels."""
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
    told = []
    if LABEL in events:
        told.append(CLASSES[int(events.fixed(LABEL)[place])])
    if ENERGY in events:
        told.append(f"{1000 * float(events.fixed(ENERGY)[place]):.0f} MeV")
    return ", ".join([*told, *([f"event {int(events.fixed(EVENT)[place])}"] if EVENT in events else [])])


def vertex(events: Table, place: int) -> tuple[float, float] | None:
    """Wire and tick where the particle starts, where that is known."""
    if VERTEX not in events:
        return None
    wire, tick = events.fixed(VERTEX)[place].tolist()
    return wire, tick


def _with(shown: Window, start: tuple[float, float] | None, size: tuple[int, int]) -> Window:
    """A window that holds the start too."""
    if start is None:
        return shown
    spans = []
    for (low, high), place, most in zip(shown, start, size, strict=True):
        spans.append((max(min(low, int(place) - TILE), 0), min(max(high, int(place) + TILE), most)))
    return Window(*spans)


def draw(events: Table, size: tuple[int, int], places: Sequence[int], *, across: int = 5) -> Figure:
    """Some events side by side; ticks go up, wires to the right; a red cross is where the particle starts."""
    down = -(-len(places) // across)
    drawing = Figure(figsize=(3.3 * min(across, len(places)), 3.1 * down), layout="constrained")
    FigureCanvasAgg(drawing)
    colours = matplotlib.colormaps["viridis"].with_extremes(bad="white", under="white")
    shade: Any = None
    for number, place in enumerate(places):
        axes = drawing.add_subplot(down, min(across, len(places)), number + 1)
        index, charge = (events.ragged(name)[place] for name in (INDEX, CHARGE))
        shown = _with(window(index, charge, size), vertex(events, place), size)
        image = np.ma.masked_equal(crop(index, charge, size, shown), 0)
        extent = (*shown.wires, *shown.ticks)
        norm = LogNorm(LOWEST, HIGHEST)
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


def by_class(events: Table, *, each: int = 3) -> list[int]:
    """The first few events of every class, a column a class; without labels the first few of all."""
    if LABEL not in events:
        return list(range(min(len(events), each * len(CLASSES))))
    label = events.fixed(LABEL)
    found = [np.flatnonzero(label == number)[:each].tolist() for number in range(len(CLASSES))]
    return [own[row] for row in range(each) for own in found if row < len(own)]


def png(drawing: Figure) -> bytes:
    """As the bytes of a picture."""
    stream = io.BytesIO()
    drawing.savefig(stream, format="png", dpi=_DPI)
    return stream.getvalue()


def events(samples: Table, size: tuple[int, int], *, each: int = 3) -> figure.Figure:
    """Some events of every class in one picture."""
    places = by_class(samples, each=each)
    drawing = draw(samples, size, places)
    wide, high = (round(side * _DPI) for side in drawing.get_size_inches())
    source = f"data:image/png;base64,{base64.b64encode(png(drawing)).decode()}"
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}">'
    svg += f'<image href="{source}" width="{wide}" height="{high}"/></svg>'
    drawn = figure.picture(svg, title="Events")
    drawn["layout"]["height"] = 60 + round(PAGE * high / wide)
    return drawn
