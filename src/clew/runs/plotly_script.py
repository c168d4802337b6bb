"""Plotly's JavaScript: a small version for the traces that clew draws, and the whole one for all others.

`tools/plotly-bundle` makes the small version. It has a quarter of the size, and compiles no code in the browser.
"""

from __future__ import annotations

import functools
import gzip
import importlib.util
from collections.abc import Iterable
from pathlib import Path

from clew.figure import Figure

FILES = Path(__file__).with_name("page_files")
"""Style sheet, scripts and template of pages. The dashboard serves the style sheet and the scripts too."""
_SMALL_TRACES = ("scatter", "bar", "heatmap", "contour", "table")


def is_small(figures: Iterable[Figure]) -> bool:
    """Return whether the small version draws all figures. Figures of users may have any kind of trace."""
    return all(trace.get("type", "scatter") in _SMALL_TRACES for each in figures for trace in each["data"])


@functools.cache
def small_script() -> str:
    """Return the small version."""
    return gzip.decompress((FILES / "plotly.js.gz").read_bytes()).decode()


def whole_script_path() -> Path:
    """Return the path of the whole version, which the Python package of Plotly contains."""
    spec = importlib.util.find_spec("plotly")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent / "package_data" / "plotly.min.js"
