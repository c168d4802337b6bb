"""Plots for papers, by matplotlib in the styles of mplhep."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from numpy.typing import NDArray

from clew import tally
from clew.errors import ConfigError, nearest
from clew.figure import COLOURS

if TYPE_CHECKING:
    from clew.recipes.jets.curves import Pairs

Floats = NDArray[np.float64]
LOWEST = 0.05
"""Efficiency of signal from which on curves are drawn."""


def rejections(pairs: Pairs, style: str) -> Figure:
    """Background rejection against signal efficiency, a curve a background, with the band of the bootstrap.

    Raises:
        ConfigError: mplhep has no such style.
    """
    import mplhep

    from clew.recipes.jets.curves import Area, replicas

    if style not in mplhep.style.__all__:
        raise ConfigError(f"judging.style: mplhep has no style '{style}'{nearest(style, mplhep.style.__all__)}")
    grid = np.linspace(LOWEST, 1, 96)
    with matplotlib.rc_context({**getattr(mplhep.style, style), "svg.fonttype": "path", "svg.hashsalt": "clew"}):
        drawing = Figure(figsize=(10, 7.5))
        axes = drawing.add_subplot()
        for place, name in enumerate(pairs.backgrounds):
            sums, squares, colour = pairs.sums[place], pairs.squares[place], COLOURS[place % len(COLOURS)]
            known = Area(sums, squares)
            label = f"against {name}, AUC {known.value:.4f} ± {known.error:.4f}"
            drawn = np.array([_rejection(each, grid) for each in replicas(sums, squares)[:100]])
            with np.errstate(invalid="ignore"):
                low, high = np.nanpercentile(drawn, [16, 84], axis=0) if len(drawn) else (grid, grid)
            axes.fill_between(grid, low, high, color=colour, alpha=0.25, linewidth=0)
            axes.plot(grid, _rejection(sums, grid), color=colour, label=label, linewidth=2.5)
        axes.set(yscale="log", xlim=(0, 1), xlabel=f"{pairs.signal} efficiency", ylabel="Background rejection")
        axes.set_ylim(bottom=1)
        axes.legend(fontsize="xx-small", loc="upper right")
        drawing.tight_layout()
    return drawing


def svg(drawing: Figure) -> str:
    """As text."""
    stream = io.StringIO()
    canvas: Any = FigureCanvasSVG(drawing)
    canvas.print_svg(stream, metadata={"Date": None})
    return stream.getvalue()


def _rejection(sums: Floats, grid: Floats) -> Floats:
    """At these efficiencies; NaN where no background is left."""
    fake, real = tally.Roc(sums[0], sums[1]).rates()
    passed = np.interp(grid, real, fake)
    with np.errstate(divide="ignore"):
        return np.asarray(np.where(passed > 0, 1 / passed, np.nan))
