"""HTML pages: one self-contained file each, with plotting code and data. They open without a network."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from clew.core.files import write_text
from clew.figure import Figure
from clew.runs.scores import Score

_TEMPLATE = Path(__file__).with_name("report.template.html")


class HtmlPage:
    """Builds a page section by section. The caller must escape text that it passes as HTML."""

    def __init__(self, title: str) -> None:
        self.title = title
        self._body: list[str] = []
        self._figures: list[Figure] = []

    def header(self, state: str = "", facts: Iterable[str] = (), notes: Iterable[str] = ()) -> None:
        """Add the title, the state as a badge, one line of facts (HTML), and important notes (HTML)."""
        badge = f' <span class="state {escape(state)}">{escape(state)}</span>' if state else ""
        lines = "".join(f'<p class="bad">{note}</p>' for note in notes)
        line = f'<p class="facts">{" · ".join(facts)}</p>'
        self._body.append(f"<header><h1>{escape(self.title)}{badge}</h1>{line}{lines}</header>")

    def add(self, html: str) -> None:
        """Add HTML between sections."""
        self._body.append(html)

    def section(self, title: str, html: str = "", figures: Sequence[Figure] = ()) -> None:
        """Add a section: HTML, then figures. Nothing is added if both are empty."""
        if html or figures:
            self._body.append(f"<section><h2>{escape(title)}</h2>{html}{self._places(figures)}</section>")

    def write(self, path: Path) -> Path:
        """The page as a file."""
        page, plotly = _TEMPLATE.read_text(encoding="utf-8"), _plotly()
        for name, text in {
            "POLICY": _policy(plotly, page.rpartition("<script>")[2].partition("</script>")[0]),
            "TITLE": escape(self.title),
            "BODY": "\n".join(self._body),
            "FIGURES": json.dumps(self._figures, allow_nan=False).replace("<", "\\u003c"),
            "PLOTLY": plotly,
        }.items():
            page = page.replace(f"<!--{name}-->", text, 1)
        write_text(path, page)
        return path

    def _places(self, figures: Sequence[Figure]) -> str:
        """Places for figures, whose data goes to the end of the page; one with a height gets it, and the width."""
        places = []
        for item in figures:
            layout = item["layout"]
            wide = " wide" if "xaxis2" in layout or "height" in layout else ""
            tall = f' style="height: {_number(layout["height"])}px"' if "height" in layout else ""
            places.append(f'<div class="plot{wide}"{tall} data-figure="{len(self._figures)}"></div>')
            self._figures.append(item)
        return f'<div class="plots">{"".join(places)}</div>' if places else ""


def write_page(path: Path, title: str, facts: str, sections: list[tuple[str, str, list[Figure]]]) -> Path:
    """A page of a title, a line of facts (text), and sections of HTML and figures."""
    page = HtmlPage(title)
    page.header(facts=[escape(facts)])
    for name, content, drawn in sections:
        page.section(name, content, drawn)
    return page.write(path)


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table of cells that are HTML already; without a head if that is empty."""
    top = "".join(f"<th>{cell}</th>" for cell in head)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table>{f'<thead><tr>{top}</tr></thead>' if top else ''}<tbody>{body}</tbody></table>"


def score_cell(score: Score | None) -> str:
    """A number and its error, as a cell."""
    if score is None:
        return "–"
    return score.value_text + (f" <small>{score.error_text}</small>" if score.error_text else "")


def label(name: str) -> str:
    """A metric's name for people."""
    return escape(name.replace("_", " "))


def _policy(*scripts: str) -> str:
    """What the page may do: run these scripts and no others, show images in it, and load nothing from elsewhere."""
    hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    allowed += " 'unsafe-eval'"  # plotly compiles the code that draws on a GPU
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; font-src data:"


def _number(value: Any) -> float:
    """A height in pixels; figures of runs from elsewhere may hold anything."""
    return float(value) if isinstance(value, (int, float)) else 390.0


def _plotly() -> str:
    """Plotly's JavaScript, from its Python package, without importing that."""
    spec = importlib.util.find_spec("plotly")
    assert spec is not None and spec.origin is not None
    return (Path(spec.origin).parent / "package_data" / "plotly.min.js").read_text(encoding="utf-8")
