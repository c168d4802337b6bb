"""Small curves as SVG: they need no script, so every notebook shows them, and a stored notebook keeps them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from clew.figure import COLOURS

Curve = Sequence[tuple[float, float]]
"""Points (x, y) of a curve."""
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 320, 170, 52, 22, 20
_MAX_POINTS = 200
"""Points per curve: a live view is drawn again and again."""


def svg_curves(title: str, curves: Mapping[str, Curve], *, x: str = "epoch") -> str:
    """Return curves in one frame, with a legend. The y axis is logarithmic if all values are positive and differ much.

    Args:
        title: Text above the frame.
        curves: The points of each curve, by its name.
        x: Title of the x axis.

    Returns:
        An `<svg>` element; empty if there are not two points.

    Example:
        >>> svg_curves("loss", {"train": [(0, 1.0), (1, 0.5)]}).startswith("<svg")
        True
    """
    finite = {name: _finite(curve) for name, curve in curves.items()}
    points = [point for curve in finite.values() for point in curve]
    if len({px for px, _ in points}) < 2:
        return ""
    xs, ys = [px for px, _ in points], [py for _, py in points]
    logarithmic = min(ys) > 0 and max(ys) / min(ys) > 20
    low, high = (math.log10(min(ys)), math.log10(max(ys))) if logarithmic else (min(ys), max(ys))
    spread = (high - low) or abs(high) or 1.0
    low, high = low - 0.05 * spread, high + 0.05 * spread
    first, last = min(xs), max(xs)

    def place(point: tuple[float, float]) -> str:
        value = math.log10(point[1]) if logarithmic else point[1]
        across = _LEFT + (point[0] - first) / (last - first) * (_WIDTH - _LEFT - 8)
        down = _HEIGHT - _BOTTOM - (value - low) / (high - low) * (_HEIGHT - _BOTTOM - _TOP)
        return f"{across:.1f},{down:.1f}"

    lines, legend = [], []
    for number, (name, curve) in enumerate(finite.items()):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(map(place, curve))
        lines.append(f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{path}"/>')
        legend.append(f'<tspan fill="{colour}">&#9632; {escape(name)}&#160; </tspan>')
    frame = f'<rect x="{_LEFT}" y="{_TOP}" width="{_WIDTH - _LEFT - 8}" height="{_HEIGHT - _BOTTOM - _TOP}"'
    ends = [10**value if logarithmic else value for value in (high, low)]
    texts = [
        _text(_LEFT - 4, _TOP + 9, f"{ends[0]:.3g}", "end"),
        _text(_LEFT - 4, _HEIGHT - _BOTTOM, f"{ends[1]:.3g}", "end"),
        _text(_LEFT, _HEIGHT - 8, f"{first:.3g}", "start"),
        _text(_WIDTH - 8, _HEIGHT - 8, f"{last:.3g} {x}", "end"),
        _text(_LEFT, 13, f"{escape(title)}: {''.join(legend)}", "start", escaped=True),
    ]
    style = 'style="background:#fff;margin:2px" font-family="sans-serif" font-size="10"'
    return (
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}" {style}>'
        f'{frame} fill="none" stroke="#888"/>{"".join(lines)}{"".join(texts)}</svg>'
    )


def _text(x: float, y: float, text: str, anchor: str, *, escaped: bool = False) -> str:
    content = text if escaped else escape(text)
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="#333">{content}</text>'


def _finite(curve: Curve) -> list[tuple[float, float]]:
    """Return the finite points of a curve; of many, every nth and the last."""
    points = [(x, y) for x, y in curve if math.isfinite(y)]
    step = -(-len(points) // _MAX_POINTS)
    return points if step <= 1 else [*points[::step], points[-1]]
