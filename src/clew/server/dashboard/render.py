"""Renders templates, and finds the static files of pages. Values are escaped unless a filter of clew made them."""

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

FOLDER = Path(__file__).parent
STATIC = FOLDER / "static"
MEDIA_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
PLOTLY = "plotly.js"
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; style-src-attr 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; frame-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""Only scripts of this server. Plotly and gauges set style attributes, which cannot run code."""


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(FILTERS)
    environment.globals["static"] = address
    return environment


def page(template: str, **values: Any) -> str:
    """Render a template to HTML."""
    return _environment().get_template(template).render(**values)


@functools.cache
def file(name: str) -> Path | None:
    """Return the path of a static file; None if there is none. The script of Plotly comes from its package."""
    if name == PLOTLY:
        spec = importlib.util.find_spec("plotly")
        assert spec is not None and spec.origin is not None
        return Path(spec.origin).parent / "package_data" / "plotly.min.js"
    files = {path.name: path for path in STATIC.iterdir() if path.suffix in MEDIA_TYPES}
    return files.get(name)


@functools.cache
def compressed(name: str) -> bytes:
    """Return a static file compressed with gzip. Plotly's script has five megabytes, and tunnels are often slow."""
    path = file(name)
    assert path is not None, name
    return gzip.compress(path.read_bytes(), 6)


@functools.cache
def address(name: str) -> str:
    """Return the address of a static file. It changes with the content, so that browsers may cache it forever."""
    path = file(name)
    assert path is not None, name
    mark = importlib.metadata.version("plotly") if name == PLOTLY else _mark()
    return f"/static/{mark}/{name}"


@functools.cache
def _mark() -> str:
    """Return a hash of all static files: scripts import each other by relative names."""
    digest = hashlib.sha256()
    for path in sorted(STATIC.iterdir()):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
