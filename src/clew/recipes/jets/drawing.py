"""Plots for papers, by matplotlib in the styles of mplhep."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, cast

import matplotlib
import numpy as np
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from numpy.typing import NDArray

from clew import metrics
from clew.errors import ConfigError, nearest
from clew.figure import COLOURS

if TYPE_CHECKING:
    from clew.recipes.jets.curves import Pairs

Floats = NDArray[np.float64]
BAND = 100
"""Replicas that the band of a curve is made of."""
_FIXED: Any = {"svg.fonttype": "path", "svg.hashsalt": "clew"}
"""The same bytes everywhere, whatever fonts a reader's machine has."""
LOWEST = 0.05
"""Efficiency of signal from which on curves are drawn."""


def rejections(pairs: Pairs, style: str) -> Figure:
    """Background rejection against signal efficiency, a curve a background, with the band of the bootstrap.

    Raises:
        ConfigError: mplhep has no such style.
    """
    from clew.recipes.jets.curves import Area, replicas

    grid = np.linspace(LOWEST, 1, 96)
    with matplotlib.rc_context(_style(style)):
        drawing = Figure(figsize=(10, 7.5))
        axes = drawing.add_subplot()
        for place, name in enumerate(pairs.backgrounds):
            sums, squares, colour = pairs.sums[place], pairs.squares[place], COLOURS[place % len(COLOURS)]
            known = Area(sums, squares)
            label = f"against {name}, AUC {known.value:.4f} ± {known.error:.4f}"
            low, high = _band(np.array([_rejection(each, grid) for each in replicas(sums, squares)[:BAND]]))
            axes.fill_between(grid, low, high, color=colour, alpha=0.25, linewidth=0)
            axes.plot(grid, _rejection(sums, grid), color=colour, label=label, linewidth=2.5)
        axes.set(yscale="log", xlim=(0, 1), xlabel=f"{pairs.signal} efficiency", ylabel="Background rejection")
        axes.set_ylim(1, 1.1 * axes.get_ylim()[1] ** 1.3)  # room for the legend
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.legend(fontsize="xx-small", loc="upper right")
        drawing.tight_layout()
    return drawing


def svg(pairs: Pairs, style: str) -> str:
    """The same as text. Fonts are chosen when it is printed, so that too is done in the style."""
    stream, canvas = io.StringIO(), cast(Any, FigureCanvasSVG(rejections(pairs, style)))
    with matplotlib.rc_context({**_style(style), **_FIXED}):
        canvas.print_svg(stream, metadata={"Date": None})
    return stream.getvalue()


def _style(name: str) -> Any:
    import mplhep

    known = [each for each in vars(mplhep.style) if isinstance(getattr(mplhep.style, each), dict) and each[0].isupper()]
    if name not in known:
        raise ConfigError(
            f"judging.style: mplhep has no style '{name}'{nearest(name, known)}; there are {', '.join(known)}"
        )
    return getattr(mplhep.style, name)


def _band(drawn: Floats) -> tuple[Floats, Floats]:
    """The middle 68% of replicas; NaN where less than half of them have a value."""
    known = np.isfinite(drawn).sum(axis=0) > len(drawn) / 2
    low, high = np.full((2, drawn.shape[1]), np.nan)
    if known.any():
        low[known], high[known] = np.nanpercentile(drawn[:, known], [16, 84], axis=0)
    return low, high


def _rejection(sums: Floats, grid: Floats) -> Floats:
    """At these efficiencies; NaN where no background is left."""
    fake, real = metrics.Roc(sums[0], sums[1]).rates()
    passed = np.interp(grid, real, fake)
    with np.errstate(divide="ignore"):
        return np.asarray(np.where(passed > 0, 1 / passed, np.nan))
