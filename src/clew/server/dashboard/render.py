"""Templates to pages, and the files they need. All in a page is escaped that no filter of ours made."""

from __future__ import annotations

import functools
import gzip
import hashlib
import importlib.metadata
import importlib.util
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader

from clew.server.dashboard.formatting import FILTERS

HERE = Path(__file__).parent
STATIC = HERE / "static"
KINDS = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
PLOTLY = "plotly.js"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; style-src-attr 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; frame-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""No script but ours. Plotly and gauges set style attributes, which cannot act."""


@functools.cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(FILTERS)
    made.globals["static"] = address
    return made


def page(template: str, **values: Any) -> str:
    """The HTML of a page."""
    return _environment().get_template(template).render(**values)


@functools.cache
def file(name: str) -> Path | None:
    """A file that pages need; None where there is no such one. Plotly's comes from its own package."""
    if name == PLOTLY:
        found = importlib.util.find_spec("plotly")
        assert found is not None and found.origin is not None
        return Path(found.origin).parent / "package_data" / "plotly.min.js"
    known = {path.name: path for path in STATIC.iterdir() if path.suffix in KINDS}
    return known.get(name)


@functools.cache
def packed(name: str) -> bytes:
    """The same, compressed: plotly's is five megabytes, and browsers are often at the far end of a tunnel."""
    path = file(name)
    assert path is not None, name
    return gzip.compress(path.read_bytes(), 6)


@functools.cache
def address(name: str) -> str:
    """Where a browser gets a file; the address changes with the content, so that it may be kept for ever."""
    path = file(name)
    assert path is not None, name
    mark = importlib.metadata.version("plotly") if name == PLOTLY else _mark()
    return f"/static/{mark}/{name}"


@functools.cache
def _mark() -> str:
    """Of all files together: modules import each other by relative names."""
    digest = hashlib.sha256()
    for path in sorted(STATIC.iterdir()):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
