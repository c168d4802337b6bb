"""What records tell of a run as a whole: its state, its progress, its newest validation."""

from __future__ import annotations

from typing import Any

from clew.runs.folder import STATES
from clew.runs.records import Record
from clew.server.runs.record_numbers import LEAD, number, text, whole

FACTS: tuple[str, ...] = (
    "state",
    "message",
    "host",
    "workers",
    "epochs",
    "epochs_done",
    "samples_per_second",
    "metrics",
)
TIMES: tuple[str, ...] = ("begun", "ended", "updated")
BEGINNING: dict[str, Any] = {
    "workers": 0,
    "epochs": 0,
    "epochs_done": 0,
    "samples_per_second": 0.0,
    "begun": None,
    "ended": None,
}
"""Columns of a run that has told nothing yet."""


def story(facts: dict[str, Any], name: str, record: Record) -> bool:
    """What a record changes in the run's own row; whether lists should know at once."""
    kind, moment = record["kind"], number(record["time"]) or 0.0
    if name != LEAD:
        if kind == "end" and record.get("status") == "failed" and facts["state"] == "running":
            facts |= {"state": "failed", "ended": moment, "message": f"{name}: {text(record.get('message'))}"}
            return True
        return False
    if kind == "start":
        facts |= {"state": "running", "message": "", "ended": None, "workers": _few(record.get("ranks"))}
        facts |= {"begun": facts["begun"] or moment, "host": text(record.get("host") or facts["host"], 200)}
    elif kind == "plan":
        facts["epochs"] = _few(record.get("epochs"))
    elif kind == "validation":
        told = record.get("metrics")
        kept = list(told.items())[:100] if isinstance(told, dict) else []
        facts["metrics"] = {text(key, 200): number(value) for key, value in kept}
        facts["epochs_done"] = _few(record.get("epoch")) + 1
    elif kind == "end":
        state = record.get("status") if record.get("status") in STATES else "failed"
        facts |= {"state": state, "ended": moment, "message": text(record.get("message"))}
    return kind in ("start", "validation", "end")


def _few(value: Any) -> int:
    return whole(value, 0, largest=10**9)
