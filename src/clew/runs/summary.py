"""What a run amounts to, in a few numbers."""

from __future__ import annotations

from dataclasses import dataclass

from clew.runs import resource_usage
from clew.runs.folder import Run
from clew.runs.progress import progress_of
from clew.runs.times import RunTimes, time_totals


@dataclass(frozen=True)
class Summary:
    """The main facts about a run."""

    name: str
    state: str
    recipe: str
    workers: int
    epochs: int
    epochs_done: int
    parameters: int
    device: str
    """The device of rank 0; empty before its plan is recorded, and for a training loop outside clew."""
    seconds: float
    """From the first record to the last."""
    times: RunTimes
    """Speed, time per epoch, load time, data wait, and shares of the time."""
    loading: str
    """Where samples were stored and how fast they were loaded; empty if they were in memory."""
    memory: float | None
    """Peak memory of all ranks in bytes; None if it was not measured."""
    energy: float | None
    """Energy of all ranks in joules; None if the hardware does not measure it."""
    metrics: dict[str, float | None]
    """Metrics of the newest validation."""
    message: str
    """Why it failed or stopped."""


def summarize(run: Run) -> Summary:
    """Read the main stream of a run once, and summarise it."""
    records, end = run.history(run.main_stream), run.end()
    data = run.config().data
    plan = next((record for record in records if record["kind"] == "plan"), {})
    validations = [record for record in records if record["kind"] == "validation"]
    train, progress = data.get("train", {}), progress_of(records)
    return Summary(
        name=run.name,
        state=run.state,
        recipe=str(data.get("recipe", "")),
        workers=int(train.get("workers", 1)),
        epochs=int(train.get("epochs", 0)),
        epochs_done=progress.epochs_done,
        parameters=int(plan.get("parameters", 0)),
        device=str(plan.get("device", "")),
        seconds=records[-1]["time"] - records[0]["time"] if records else 0.0,
        times=time_totals(records).times(),
        loading=_loading(validations[-1].get("loading", {})) if validations else "",
        memory=resource_usage.peak_memory(run),
        energy=joules(records[-1]["time"]) if records and (joules := resource_usage.energy_used(run)) else None,
        metrics=progress.metrics,
        message=str(end["message"]) if end else "",
    )


def _loading(facts: dict[str, float]) -> str:
    if not facts.get("read_seconds"):
        return ""
    speed = f"{facts['read_bytes'] / facts['read_seconds'] / 1e9:.2f} GB/s"
    if not facts.get("bytes"):
        return f"from disk at {speed}"
    packed = facts["raw_bytes"] / facts["pack_seconds"] / 1e9 if facts.get("pack_seconds") else 0.0
    at = f" at {packed:.2g} GB/s" if packed else ""
    return f"compressed {facts['raw_bytes'] / facts['bytes']:.1f} times{at}, read at {speed}"
