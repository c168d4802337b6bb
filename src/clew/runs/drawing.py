"""Figures of clew drawn by matplotlib, in the styles of mplhep: for notebooks and papers."""

from __future__ import annotations

import functools
import io
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from clew.errors import ConfigError, nearest
from clew.figure import COLOURS, Figure

_SIZE = (6.4, 4.8)
"""Width and height of one figure in inches; those of mplhep's styles are scaled to it."""


def draw_figures(figures: Sequence[Figure], *, style: str = "") -> Any:
    """Draw figures side by side.

    Args:
        figures: Figures as `clew.figure` makes them: curves, points, bars and matrices.
        style: A style of mplhep, for example CMS or ATLAS. Default: that of matplotlib.

    Returns:
        A matplotlib figure, which a notebook shows. Save it with `savefig("loss.pdf")`.

    Raises:
        ConfigError: mplhep has no such style, or there is no figure that can be drawn.
    """
    import matplotlib

    drawn = [each for each in figures if any(trace["type"] in _TRACES for trace in each["data"])]
    if not drawn:
        raise ConfigError("there are no curves, points, bars or matrices to draw")
    with matplotlib.rc_context(mplhep_style(style)):
        scale = matplotlib.rcParams["figure.figsize"][0] / _SIZE[0]
        size = (_SIZE[0] * scale * len(drawn), _SIZE[1] * scale)
        drawing = _drawing_class()(figsize=size, layout="constrained")
        for number, each in enumerate(drawn, start=1):
            _draw(drawing.add_subplot(1, len(drawn), number), each)
    return drawing


@functools.cache
def _drawing_class() -> Any:
    """Return the class of figures that notebooks show: those of matplotlib need pyplot for that."""
    from matplotlib.figure import Figure as MatplotlibFigure

    class Drawing(MatplotlibFigure):
        def _repr_png_(self) -> bytes:
            stream, log = io.BytesIO(), logging.getLogger("matplotlib.font_manager")
            level = log.level
            log.setLevel(logging.ERROR)  # styles of mplhep name fonts that few machines have
            try:
                self.savefig(stream, format="png", dpi=80)
            finally:
                log.setLevel(level)
            return stream.getvalue()

    return Drawing


def mplhep_style(name: str) -> Any:
    """Return the settings of a style of mplhep; none for an empty name.

    Raises:
        ConfigError: There is no such style.
    """
    if not name:
        return {}
    import mplhep

    known = vars(mplhep.style)
    styles = [style for style, value in known.items() if isinstance(value, dict) and style[0].isupper()]
    if name not in styles:
        raise ConfigError(f"mplhep has no style '{name}'{nearest(name, styles)}; there are {', '.join(styles)}")
    return known[name]


def _draw(axes: Any, figure: Figure) -> None:
    layout = figure["layout"]
    for number, trace in enumerate(figure["data"]):
        if trace["type"] in _TRACES:
            _TRACES[trace["type"]](axes, trace, COLOURS[number % len(COLOURS)])
    axes.set_title(layout["title"]["text"])
    for axis in ("x", "y"):
        settings = layout[f"{axis}axis"]
        getattr(axes, f"set_{axis}label")(settings["title"]["text"])
        if settings.get("type") == "log":
            getattr(axes, f"set_{axis}scale")("log")
        if "range" in settings and settings.get("type") != "log":
            getattr(axes, f"set_{axis}lim")(*settings["range"])
        if settings.get("autorange") == "reversed":
            getattr(axes, f"invert_{axis}axis")()
    if any(trace.get("name") for trace in figure["data"]) and axes.get_legend_handles_labels()[0]:
        axes.legend()


def _draw_scatter(axes: Any, trace: Mapping[str, Any], colour: str) -> None:
    x, y = _numbers(trace["x"]), _numbers(trace["y"])
    settings = trace.get("line", {})
    colour = settings.get("color") or trace.get("marker", {}).get("color") or colour
    mode = trace.get("mode", "lines")
    options: dict[str, Any] = {"color": colour, "label": trace.get("name")}
    options |= {"linestyle": "-" if "lines" in mode else "none", "marker": "o" if "markers" in mode else ""}
    if settings.get("shape") == "hv":
        axes.step(x, y, where="post", color=colour, label=trace.get("name"))
        return
    errors = trace.get("error_y", {})
    if errors.get("array") is not None:
        up = _numbers(errors["array"])
        axes.errorbar(x, y, yerr=[_numbers(errors.get("arrayminus", errors["array"])), up], **options)
        return
    axes.plot(x, y, **options)


def _draw_bars(axes: Any, trace: Mapping[str, Any], colour: str) -> None:
    if trace.get("orientation") == "h":
        axes.barh(trace["y"], trace["x"], label=trace.get("name"), color=colour)
    else:
        axes.bar(trace["x"], trace["y"], label=trace.get("name"), color=colour)


def _draw_matrix(axes: Any, trace: Mapping[str, Any], colour: str) -> None:
    values = np.array([_numbers(row) for row in trace["z"]])
    image = axes.imshow(values, origin="lower", aspect="auto", cmap="viridis")
    for axis in ("x", "y"):
        if trace.get(axis) is not None:
            getattr(axes, f"set_{axis}ticks")(range(len(trace[axis])), [str(label) for label in trace[axis]])
    axes.figure.colorbar(image, ax=axes)


def _numbers(values: Any) -> Any:
    """Return values as an array; a missing number becomes NaN, which is a gap."""
    return np.array([np.nan if value is None else value for value in values])


_TRACES = {"scatter": _draw_scatter, "bar": _draw_bars, "heatmap": _draw_matrix}
"""What draws each type of trace."""
