"""The evaluation step of PanDA: prepare files and train at one point, in the working folder of a job."""

from __future__ import annotations

import json
import math
import shutil
import tarfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clew.data.dataset import Dataset
from clew.errors import ClewError, DataError, RunError
from clew.runs import Run
from clew.runs.times import time_figures
from clew.tuning import objectives
from clew.tuning.config import TuneConfig
from clew.tuning.panda.job_metadata import METADATA, write_json
from clew.tuning.space import Template

FAILED_LOSS = 1e30
"""The loss of a point that failed: PanDA needs a number."""


@dataclass(frozen=True)
class GridJob:
    """One job on the grid: settings, input files and the working folder."""

    template: Template
    files: Sequence[str]
    folder: Path
    names: Mapping[str, str] = field(default_factory=dict)
    """Keys of the settings by name in the point."""
    on_start: Callable[[Run], None] | None = None
    """Called with the run before it trains."""

    @property
    def dataset(self) -> Path:
        """The dataset that the job trains on."""
        return self.folder / "dataset" if self.files else Path(self.template.train.dataset)

    @property
    def run(self) -> Run:
        """The run of the job."""
        return Run(self.folder / "run")


def evaluate(
    template: Template,
    point: Any,
    files: Sequence[str],
    *,
    folder: Path,
    names: Mapping[str, str] | None = None,
    on_start: Callable[[Run], None] | None = None,
) -> dict[str, Any]:
    """Prepare the files, train at a point, and return the content of output.json.

    The run is in `run`; metadata.json and metrics.tgz hold more about it. An existing run is resumed: the grid restores
    the checkpoints of a job that it retries. An error is returned as a status other than 0 with the loss `FAILED_LOSS`.

    Args:
        template: The settings.
        point: The values of the point by name.
        files: Input files; empty if the dataset exists.
        folder: The working folder. Only this folder is written to.
        names: Keys of the settings by name in the point.
        on_start: Called with the run before it trains.
    """
    job = GridJob(template, files, folder, names or {}, on_start)
    try:
        loss, facts = _train(job, point)
    except (ClewError, OSError) as error:
        return {"status": getattr(error, "exit_code", 1) or 1, "loss": FAILED_LOSS, "message": str(error)}
    if not math.isfinite(loss):
        return {"status": 1, "loss": FAILED_LOSS, "message": f"the objective is {loss}"}
    write_json(folder / "metadata.json", facts)
    return {"status": 0, "loss": loss, "message": "ok"}


def train_on_grid(template: Template, files: Sequence[str], *, folder: Path) -> Run:
    """Train as a job of PanDA: prepare the files, train in `folder`, and write what goes back to the user.

    The outputs are the best weights, figures in metrics.json and userJobMetadata.json, and records in metrics.tgz.

    Raises:
        ClewError: Any error of preparing or training.
    """
    job = GridJob(template, files, folder)
    _, facts = _train(job, {})
    validation: dict[str, Any] = next(job.run.reversed_records(kinds=("validation",)), {"metrics": {}})
    metadata = {
        "figures": facts,
        "metrics": validation["metrics"],
        "dataset": Dataset(job.dataset).manifest.key,
    }
    for name in ("metrics.json", METADATA):
        write_json(folder / name, metadata)
    shutil.copy(job.run.checkpoint("best"), folder / "model.safetensors")
    return job.run


def _train(job: GridJob, point: Any) -> tuple[float, dict[str, Any]]:
    """Train at a point. Return the loss (lower is better) and facts about the run."""
    from clew.data.prepare.api import prepare
    from clew.training.api import resume, train

    objective = (job.template.tune or TuneConfig()).objectives[0]
    values = _settings(job.template, point, job.names)
    fixed: dict[str, Any] = {"train.dataset": str(job.dataset.absolute()), "train.keep_checkpoints": 1}
    if objective.validated is not None:
        fixed |= {"train.best.metric": objective.validated, "train.best.direction": objective.direction}
    changed = job.template.changed({**fixed, **values}, "the point")
    if job.files:
        inputs = [str(job.folder / file) for file in job.files]
        cache = str(job.folder / "cache")
        prepare(changed.recipe, changed.prepare, input=inputs, output=str(job.dataset), cache=cache)
    run = job.run
    if not run.config_file.exists():
        train(changed.recipe, None, config=changed.train, output=run.path, on_start=job.on_start, progress=False)
    elif different := _different_setting(run, changed.data, values):
        raise RunError(f"{run.path} was trained at another point ({different}); remove it, or use another folder")
    elif run.state != "finished":
        resume(run, on_start=job.on_start, progress=False)
    value = objectives.objective_values(run, [objective])[0]
    _write_records(run, job.folder / "metrics.tgz")
    cost = objectives.run_cost(run)
    times = {"seconds": cost.seconds, "cpu_seconds": cost.cpu, **time_figures(run)}
    facts = {objective.metric: value, **times, "settings": values}
    return value if objective.direction == "minimize" else -value, facts


def _different_setting(run: Run, settings: Mapping[str, Any], keys: Iterable[str]) -> str:
    """Return the first key whose value differs between a run and the settings; empty if there is none."""
    run_settings = run.config().data
    return next((key for key in keys if _lookup(run_settings, key) != _lookup(settings, key)), "")


def _lookup(data: Any, key: str) -> Any:
    for name in key.split("."):
        data = data.get(name) if isinstance(data, Mapping) else None
    return data


def _settings(template: Template, point: Any, names: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings of a point. A name is a key, an entry of `names`, or the end of a key of the space."""
    values = point[1] if isinstance(point, list) and len(point) == 2 else point
    if not isinstance(values, Mapping):
        raise DataError(f"a point is a mapping of settings, not {json.dumps(point)[:80]}")
    space = template.tune.space if template.tune is not None else {}
    settings = {}
    for name, value in values.items():
        matches = [key for key in space if key == name or key.endswith(f".{name}")]
        settings[names.get(name) or (matches[0] if len(matches) == 1 else name)] = value
    return settings


def _write_records(run: Run, path: Path) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for file in (run.config_file, run.environment_file, run.records_folder):
            archive.add(file, arcname=file.relative_to(run.path))


def read_json(path: Path) -> Any:
    """Return the content of a JSON file.

    Raises:
        DataError: The file cannot be read.
    """
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as JSON ({error})") from error
