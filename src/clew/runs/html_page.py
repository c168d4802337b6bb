"""HTML pages: one self-contained file each, with plotting code and data. They open without a network."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from clew.core.files import write_text
from clew.figure import Figure
from clew.runs.compact_figure import compact
from clew.runs.plotly_script import FILES, is_small, small_script, whole_script_path
from clew.runs.scores import Score

_LONG_NOTE = 400
"""Characters of a note that are shown at first."""
_NO_HEAD = '<span class="quiet">name</span>'
"""Heading of a column without one, for screen readers."""


class HtmlPage:
    """Builds a page section by section. The caller must escape text that it passes as HTML."""

    def __init__(self, title: str) -> None:
        self.title = title
        self._body: list[str] = []
        self._figures: list[Figure] = []

    def header(self, state: str = "", facts: Iterable[str] = (), notes: Iterable[str] = ()) -> None:
        """Add the title, the state as a badge, one line of facts (HTML), and important notes (HTML)."""
        badge = f' <span class="state {escape(state)}">{escape(state)}</span>' if state else ""
        lines = "".join(f'<div class="note bad">{clamped(note)}</div>' for note in notes)
        line = "".join(f"<li>{fact}</li>" for fact in facts)
        title = f"<h1>{escape(self.title)}{badge}</h1>"
        self._body.append(f'<header class="head"><div>{title}<ul class="facts">{line}</ul></div></header>{lines}')

    def tiles(self, values: Mapping[str, str]) -> None:
        """Add a row of numbers (HTML) by name (HTML)."""
        cells = "".join(f'<div class="tile"><span>{name}</span>{html}</div>' for name, html in values.items())
        self._body.append(f'<div class="tiles">{cells}</div>' if cells else "")

    def add(self, html: str) -> None:
        """Add HTML between sections."""
        self._body.append(html)

    def section(self, title: str, html: str = "", figures: Sequence[Figure] = ()) -> None:
        """Add a section: HTML, then figures. Nothing is added if both are empty."""
        if html or figures:
            self._body.append(f"<section><h2>{escape(title)}</h2>{html}{self._places(figures)}</section>")

    def write(self, path: Path) -> Path:
        """The page as a file."""
        plotly, policy = "", ""
        if self._figures:
            small = is_small(self._figures)
            plotly = small_script() if small else whole_script_path().read_text(encoding="utf-8")
            policy = "" if small else " 'unsafe-eval'"  # the whole version compiles the code that draws on a GPU
        script = _file("plot_theme.js") + _file("static_page.js") if self._figures else ""
        sketch = _file("sketch.js") if self._figures else ""
        page = _file("page.template.html")
        for name, text in {
            "POLICY": _policy(policy, sketch, plotly, script),
            "TITLE": escape(self.title),
            "STYLE": _file("page.css"),
            "BODY": "\n".join(self._body),
            "FIGURES": _json([compact(each) for each in self._figures]),
            "SKETCH": sketch,
            "PLOTLY": plotly,
            "SCRIPT": script,
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
            canvas = f'<div class="canvas"{tall} data-figure="{len(self._figures)}"></div>'
            heading = f"<header><h3>{_title(layout)}</h3></header>"
            places.append(f'<figure class="sheet plot{wide}">{heading}{canvas}</figure>')
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
    top = "".join(f'<th scope="col">{cell or _NO_HEAD}</th>' for cell in head)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    cells = f"<table>{f'<thead><tr>{top}</tr></thead>' if top else ''}<tbody>{body}</tbody></table>"
    return f'<div class="sheet scroll" tabindex="0">{cells}</div>'


def clamped(html: str) -> str:
    """HTML of a message, of which a long one shows its beginning until the reader asks for all of it."""
    if len(html) <= _LONG_NOTE:
        return html
    return f'<details class="clamp"><summary><span class="clamped">{html}</span></summary></details>'


def score_cell(score: Score | None) -> str:
    """A number and its error, as a cell."""
    if score is None:
        return "–"
    return score.value_text + (f" <small>{score.error_text}</small>" if score.error_text else "")


def label(name: str) -> str:
    """A metric's name for people."""
    return escape(name.replace("_", " "))


def _policy(more: str, *scripts: str) -> str:
    """What the page may do: run these scripts and no others, show images in it, and load nothing from elsewhere."""
    hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts if script)
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes) or "'none'"
    styles = "style-src 'unsafe-inline'; img-src data: blob:; font-src data:"
    return f"default-src 'none'; script-src {allowed}{more}; {styles}"


def _json(value: Any) -> str:
    """JSON for a script element: nothing in it can end the element."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _number(value: Any) -> float:
    """A height in pixels; figures of runs from elsewhere may hold anything."""
    return float(value) if isinstance(value, (int, float)) else 390.0


def _title(layout: Mapping[str, Any]) -> str:
    title = layout.get("title", "")
    return escape(str(title.get("text", "") if isinstance(title, dict) else title))


@functools.cache
def _file(name: str) -> str:
    return (FILES / name).read_text(encoding="utf-8")
