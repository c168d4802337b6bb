"""The state and progress of a run, computed from its records. The listing, the summary and the server all use it.

`RunProgress.update` takes one record after the other. What has been read so far is always consistent, so the server can
keep one object per run that reports, and the listing can apply only the few records that it reads.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from clew.runs.folder import STATES
from clew.runs.record_metrics import LEAD, clean_text, finite_number, whole_number
from clew.runs.records import Record

_MAX_COUNT = 10**9


@dataclass
class RunProgress:
    """How far a run is, and how it ended."""

    state: str = "created"
    """The state according to the records. Whether a running process still exists is not in the records."""
    message: str = ""
    """Why the run ended, if it did not succeed."""
    host: str = ""
    workers: int = 0
    """Ranks, at the newest start."""
    epochs: int = 0
    epochs_done: int = 0
    started: float | None = None
    """Time of the first start, in seconds since 1970."""
    ended: float | None = None
    metrics: dict[str, float | None] = field(default_factory=dict)
    """The newest validation."""

    def update(self, record: Record, stream: str = LEAD) -> bool:
        """Apply one record.

        Args:
            record: The record; values of the wrong type are ignored.
            stream: The stream of the record. Of other ranks only a failure counts.

        Returns:
            Whether a list of runs should be refreshed at once.
        """
        kind, moment = record["kind"], finite_number(record["time"]) or 0.0
        if stream != LEAD:
            if kind == "end" and record.get("status") == "failed" and self.state == "running":
                self.state, self.ended = "failed", moment
                self.message = f"{stream}: {clean_text(record.get('message'))}"
                return True
            return False
        if kind == "start":
            self.state, self.message, self.ended = "running", "", None
            self.workers = _count(record.get("ranks"))
            self.started = self.started or moment
            self.host = clean_text(record.get("host") or self.host, 200)
        elif kind == "plan":
            self.epochs = _count(record.get("epochs"))
        elif kind == "validation":
            values = record.get("metrics")
            items = values.items() if isinstance(values, dict) else ()
            self.metrics = {clean_text(name, 200): finite_number(value) for name, value in items}
            self.epochs_done = _count(record.get("epoch")) + 1
        elif kind == "end":
            status = record.get("status")
            self.state = status if status in STATES else "failed"
            self.ended, self.message = moment, clean_text(record.get("message"))
        return kind in ("start", "validation", "end")


def progress_of(records: Iterable[Record]) -> RunProgress:
    """Return the progress after records of the first stream."""
    progress = RunProgress()
    for record in records:
        progress.update(record)
    return progress


def _count(value: Any) -> int:
    return whole_number(value, 0, largest=_MAX_COUNT)
