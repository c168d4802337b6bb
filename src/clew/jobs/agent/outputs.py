"""Copies what a job made to the store that it was submitted with."""

from __future__ import annotations

import json
from pathlib import Path

from clew import storage
from clew.client.job import JobOrder
from clew.data.prepare.reuse import dataset_location
from clew.errors import RunError
from clew.jobs.agent.folder import AgentFolder
from clew.runs import Run

_PARTS = ("model", "plots", "report", "records")
"""What is stored of a run. The records are its metrics."""


def store_outputs(order: JobOrder, root: AgentFolder) -> str:
    """Copy the outputs of a job to its store. What is there already is not sent again.

    A training, an evaluation or a script stores its run, a study the run of its best trial: `clew model find` lists
    them. A preparation stores its dataset, and a benchmark its files.

    Args:
        order: The job. It has succeeded, and names a store.
        root: The folder of the agent that ran it.

    Returns:
        The location of what was stored.

    Raises:
        RunError: The job made nothing that can be stored.
        DataError: The store cannot be written.
    """
    from clew.storage.models import store_model  # imported late: few jobs have a store

    store, folder = str(order.store), root.job(order.key).output(order.name)
    if order.kind == "prepare":
        return _copy(folder, dataset_location(store, _dataset_key(folder)))
    if order.kind == "bench":
        return _copy(folder, storage.join(store, f"{order.name}-{order.job}"))
    if order.kind == "evaluate":
        trained = root.job(str(order.target_key))
        target = trained.order()
        folder = folder if target is None else trained.output(target.name)
    if order.kind == "tune":
        folder = _best_run(folder)
    if not (folder / "config.yaml").is_file():
        raise RunError("it recorded no run; a script records one with clew.log or clew.artefact")
    name = f"{order.name}-{Run(folder).name}" if order.kind == "tune" else None
    return store_model(Run(folder), store, _PARTS, name=name)


def _copy(folder: Path, target: str) -> str:
    storage.copy(folder, target, replace=True)
    return target.partition("?")[0]


def _dataset_key(folder: Path) -> str:
    return str(json.loads((folder / "manifest.json").read_text())["key"])


def _best_run(folder: Path) -> Path:
    """The run of the best trial of a study; of a cross-validation, its first fold."""
    from clew.tuning.study import Study

    best = Study.open(folder).best()
    runs = sorted((folder / "trials").glob(f"{best[0].name}*")) if best else []
    if not runs:
        raise RunError("no trial of the study is complete")
    return runs[0]
