"""Plots of rejection against efficiency for publications, with matplotlib in the styles of mplhep."""

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
    from clew.recipes.jets.roc_metrics import RejectionCurves

Floats = NDArray[np.float64]
BAND_REPLICAS = 100
"""Number of replicas for the error band of a curve."""
_FIXED: Any = {"svg.fonttype": "path", "svg.hashsalt": "clew"}
"""Settings that give the same SVG on every machine, whatever fonts are installed."""
LOWEST_EFFICIENCY = 0.05
"""Lowest signal efficiency in the plot."""


def draw_rejections(curves: RejectionCurves, style: str) -> Figure:
    """Background rejection against signal efficiency, one curve per background, with the bootstrap error band.

    Raises:
        ConfigError: mplhep has no such style.
    """
    from clew.recipes.jets.roc_metrics import RocArea, replicas

    grid = np.linspace(LOWEST_EFFICIENCY, 1, 96)
    with matplotlib.rc_context(_style(style)):
        drawing = Figure(figsize=(10, 7.5))
        axes = drawing.add_subplot()
        for place, name in enumerate(curves.backgrounds):
            sums, squares, colour = curves.sums[place], curves.squares[place], COLOURS[place % len(COLOURS)]
            area = RocArea(sums, squares)
            label = f"against {name}, AUC {area.value:.4f} ± {area.error:.4f}"
            low, high = _band(
                np.array([_rejection(replica, grid) for replica in replicas(sums, squares)[:BAND_REPLICAS]])
            )
            axes.fill_between(grid, low, high, color=colour, alpha=0.25, linewidth=0)
            axes.plot(grid, _rejection(sums, grid), color=colour, label=label, linewidth=2.5)
        axes.set(yscale="log", xlim=(0, 1), xlabel=f"{curves.signal} efficiency", ylabel="Background rejection")
        axes.set_ylim(1, 1.1 * axes.get_ylim()[1] ** 1.3)  # space for the legend
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.legend(fontsize="xx-small", loc="upper right")
        drawing.tight_layout()
    return drawing


def draw_svg(curves: RejectionCurves, style: str) -> str:
    """The same plot as SVG. Fonts are chosen when the SVG is written, so this is done in the style too."""
    stream, canvas = io.StringIO(), cast(Any, FigureCanvasSVG(draw_rejections(curves, style)))
    with matplotlib.rc_context({**_style(style), **_FIXED}):
        canvas.print_svg(stream, metadata={"Date": None})
    return stream.getvalue()


def _style(name: str) -> Any:
    import mplhep

    styles = [
        style for style in vars(mplhep.style) if isinstance(getattr(mplhep.style, style), dict) and style[0].isupper()
    ]
    if name not in styles:
        raise ConfigError(
            f"metrics.style: mplhep has no style '{name}'{nearest(name, styles)}; there are {', '.join(styles)}"
        )
    return getattr(mplhep.style, name)


def _band(replicas: Floats) -> tuple[Floats, Floats]:
    """The central 68% of replicas; NaN where half of them or more have no value."""
    enough = np.isfinite(replicas).sum(axis=0) > len(replicas) / 2
    low, high = np.full((2, replicas.shape[1]), np.nan)
    if enough.any():
        low[enough], high[enough] = np.nanpercentile(replicas[:, enough], [16, 84], axis=0)
    return low, high


def _rejection(sums: Floats, grid: Floats) -> Floats:
    """Rejection at these efficiencies; NaN where no background passes."""
    fake, real = metrics.Roc(sums[0], sums[1]).rates()
    passed = np.interp(grid, real, fake)
    with np.errstate(divide="ignore"):
        return np.asarray(np.where(passed > 0, 1 / passed, np.nan))
