"""Pages of the reference that are made from the code."""

from __future__ import annotations

from typing import Any


def setup(app: Any) -> dict[str, Any]:
    """Called by Sphinx."""
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
