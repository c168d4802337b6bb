"""The parts that the HTML pages of all benchmarks share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from clew.figure import COLOURS, Figure
from clew.runs.html_page import HtmlPage, table

_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "star")
MISSING = "–"


@dataclass(frozen=True)
class PageSection:
    """A section of a page: a heading, HTML and figures. A section without content is left out."""

    title: str
    html: str = ""
    figures: Sequence[Figure] = ()


@dataclass(frozen=True)
class BenchPage:
    """The content of a page."""

    title: str
    facts: Sequence[str]
    """HTML fragments for the line below the title."""
    notes: Sequence[str]
    """HTML fragments that a reader must see first: failures and warnings."""
    sections: Sequence[PageSection]

    def write(self, path: Path) -> Path:
        """Write the page as one HTML file and return its path."""
        page = HtmlPage(self.title)
        page.header(facts=[fact for fact in self.facts if fact], notes=self.notes)
        for section in self.sections:
            page.section(section.title, section.html, section.figures)
        return page.write(path)


def facts_table(facts: Mapping[str, Any]) -> str:
    """Return a table of names and values."""
    return table((), [(escape(str(name)), escape(str(value))) for name, value in facts.items()])


def load_warnings(load: float | None, cores: int | None) -> list[str]:
    """Return a warning if other programs used the machine before a measurement started.

    Args:
        load: Load average before the measurement.
        cores: Number of cores.
    """
    if load is None or not cores or load <= cores / 4:
        return []
    return [f"The machine was busy: load {load:.1f} on {cores} cores before the start. The results include that."]


def colour(index: int) -> str:
    """Return the colour of a series."""
    return COLOURS[index % len(COLOURS)]


def symbol(index: int) -> str:
    """Return the marker symbol of a series."""
    return _SYMBOLS[index % len(_SYMBOLS)]


def series_style(index: int) -> dict[str, Any]:
    """Return the line and the markers of a series."""
    return {
        "line": {"color": colour(index), "width": 2},
        "marker": {"symbol": symbol(index), "size": 7, "color": colour(index)},
    }


def value_range(values: Sequence[float]) -> str:
    """Return the smallest and the largest of several values as HTML; empty for one value."""
    return f" <small>{min(values):,.1f} to {max(values):,.1f}</small>" if len(values) > 1 else ""


def format_number(value: float | None, pattern: str = "") -> str:
    """Return a number with three digits, or by a format pattern such as `,.1f`; a dash for None."""
    if value is None:
        return MISSING
    return format(value, pattern or (",.3g" if value < 1000 else ",.0f"))


def format_bytes(value: float | None) -> str:
    """Return a size in GiB; a dash for None."""
    return MISSING if value is None else f"{value / 2**30:.2f} GiB"
