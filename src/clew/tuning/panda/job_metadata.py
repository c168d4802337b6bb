"""What a job of PanDA reports: `userJobMetadata.json`, which PanDA keeps with the job, and an archive of the run."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

from clew.core.files import write_text
from clew.runs import Run

METADATA = "userJobMetadata.json"
"""The file whose content PanDA adds to the job's report, as `user_job_metadata`. At most 1 MB."""
_MAX_EPOCHS = 10_000
"""The last epochs whose times are reported, so that the metadata stay below PanDA's limit."""


def time_figures(run: Run) -> dict[str, Any]:
    """Return the times of a run in seconds: of each epoch, of loading the data, and of waiting for data.

    Args:
        run: A run with records.

    Returns:
        `epoch_seconds` (the training time of each epoch, without validation), `load_seconds` (until the samples were
        loaded; None if the run does not record it) and `data_wait_seconds` (of all steps, in the process that leads).
    """
    epochs: dict[int, float] = {}
    wait = 0.0
    for record in run.history(run.main_stream):
        if record["kind"] == "step":
            epochs[record["epoch"]] = epochs.get(record["epoch"], 0.0) + record["seconds"]
            wait += record["wait"]
    loading = (run.last("plan", run.main_stream) or {}).get("filling")
    return {
        "epoch_seconds": [round(seconds, 6) for _, seconds in sorted(epochs.items())][-_MAX_EPOCHS:],
        "load_seconds": None if loading is None else round(loading, 6),
        "data_wait_seconds": round(wait, 6),
    }


def write_script_outputs(path: Path, *, folder: Path) -> None:
    """Write what a script's job returns: the run as `run.tgz`, and its times and newest metrics as metadata.

    Args:
        path: The folder of the run; it does not exist if the script recorded nothing.
        folder: The working folder of the job.
    """
    metadata: dict[str, Any] = {}
    with tarfile.open(folder / "run.tgz", "w:gz") as archive:
        if path.exists():
            archive.add(path, arcname=path.name)
    run = Run(path)
    if run.streams():
        validation = run.last("validation", run.main_stream) or {"metrics": {}}
        metadata = {"figures": time_figures(run), "metrics": validation["metrics"]}
    write_json(folder / METADATA, metadata)


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file atomically."""
    write_text(path, json.dumps(content, allow_nan=False) + "\n")
