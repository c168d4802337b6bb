"""What a job of PanDA reports: `userJobMetadata.json`, which PanDA keeps with the job, and an archive of the run."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

from clew.core.files import write_text
from clew.runs import Run
from clew.runs.times import time_figures

METADATA = "userJobMetadata.json"
"""The file whose content PanDA adds to the job's report, as `user_job_metadata`. At most 1 MB."""


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
