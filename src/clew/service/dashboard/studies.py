"""Studies."""

from __future__ import annotations

from clew.service.dashboard import frame

router = frame.router()
