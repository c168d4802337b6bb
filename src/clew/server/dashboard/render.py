"""Renders templates, and finds the static files of pages. Values are escaped unless a filter of clew made them."""

from __future__ import annotations

import functools
import gzip
import hashlib
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader

from clew.runs.plotly_script import FILES, small_script, whole_script_path
from clew.server.dashboard.formatting import FILTERS

FOLDER = Path(__file__).parent
STATIC = FOLDER / "static"
MEDIA_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
PLOTLY, WHOLE_PLOTLY = "plotly.js", "plotly-whole.js"
"""Plotly's script in two sizes: the traces that clew draws, and all traces."""
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


def content(name: str) -> bytes | None:
    """Return a static file; None if there is none. Some are shared with static pages (`clew.runs`)."""
    if name == PLOTLY:
        return small_script().encode()
    path = whole_script_path() if name == WHOLE_PLOTLY else _static_files().get(name)
    return None if path is None else path.read_bytes()


@functools.cache
def _static_files() -> dict[str, Path]:
    paths = [path for folder in (STATIC, FILES) for path in folder.iterdir() if path.suffix in MEDIA_TYPES]
    return {path.name: path for path in sorted(paths)}


@functools.cache
def compressed(name: str) -> bytes:
    """Return a static file compressed with gzip. Plotly's script has megabytes, and tunnels are often slow."""
    text = content(name)
    assert text is not None, name
    return gzip.compress(text, 6)


@functools.cache
def address(name: str) -> str:
    """Return the address of a static file. It changes with the content, so that browsers may cache it forever."""
    text = content(name)
    assert text is not None, name
    mark = hashlib.sha256(text).hexdigest()[:12] if name in (PLOTLY, WHOLE_PLOTLY) else _mark()
    return f"/static/{mark}/{name}"


@functools.cache
def _mark() -> str:
    """Return a hash of all static files: scripts import each other by relative names."""
    digest = hashlib.sha256()
    for path in _static_files().values():
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
