"""The facts of a stored model as plain JSON: its metrics, by which it is found, and where it comes from."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clew.core.config import Document
from clew.core.files import sha256
from clew.core.format_version import check_format_version
from clew.core.metric_direction import natural_direction
from clew.errors import DataError, RunError
from clew.runs import Run
from clew.runs.summary import summarize
from clew.version import __version__

SIDECAR = "clew.json"
FORMAT = 1
"""Version of stored models. It changes when an older clew could not read a new one."""
_MAX_NAMES = 100
"""Maximum number of input names in the facts; a dataset may have thousands."""


def model_weights(run: Run) -> Path:
    """The weights to store: the best, or the last if there was no validation.

    Raises:
        RunError: The run has no weights.
    """
    for name in ("best", "last"):
        if run.checkpoint(name).is_file():
            return run.checkpoint(name)
    raise RunError(f"{run.path}: no weights to store; did the run finish its first epoch?")


def model_files(run: Run) -> list[Path]:
    """The files that are the model: its weights and, of a user's own training loop, what it saved as artefacts.

    Raises:
        RunError: The run was trained by clew and has no weights.
    """
    artefacts = sorted(path for path in run.artefacts.rglob("*") if path.is_file() and path.name[0] != ".")
    if artefacts or not run.config().data.get("recipe"):  # an own loop may only log metrics
        return artefacts
    return [model_weights(run)]


def check_model_format(location: str, facts: Mapping[str, Any]) -> None:
    """Refuse a stored model of a newer clew.

    Args:
        location: Where it is stored, without secrets.
        facts: Its facts.

    Raises:
        DataError: A newer clew stored it.
    """
    check_format_version(location, facts.get("format"), FORMAT, DataError)


def _model_hash(run: Run) -> str:
    """SHA-256 of the model's file. Of several files, or none: of their hashes and the settings."""
    digests = [sha256(path) for path in model_files(run)]
    if len(digests) == 1:
        return digests[0]
    return hashlib.sha256(" ".join([*digests, config_hash(run.config())]).encode()).hexdigest()


def model_facts(run: Run) -> dict[str, Any]:
    """The facts of a run's model: metrics as numbers (`val_loss`, `test_accuracy`, ...), hashes, versions and data.

    A model fetched from a store has no training records: its stored facts are used.
    """
    if (run.path / SIDECAR).is_file():
        return {**json.loads((run.path / SIDECAR).read_text()), **_evaluation_values(run)}
    summary, config, best = summarize(run), run.config().data, _best_validation(run)
    manifest: Mapping[str, Any] = json.loads(run.dataset_file.read_text()) if run.dataset_file.is_file() else {}
    names = [each["name"] for each in manifest.get("inputs", ())]
    dataset = str(config.get("train", {}).get("dataset", ""))
    return {
        "clew": "model",
        "format": FORMAT,
        "run": run.name,
        "recipe": Path(summary.recipe).stem,
        "state": summary.state,
        "metric": config.get("train", {}).get("best", {}).get("metric", "loss"),
        **{_identifier(f"val_{name}"): value for name, value in best.get("metrics", {}).items() if _is_number(value)},
        **_evaluation_values(run),
        "epoch": best.get("epoch", 0),
        "step": best.get("step", 0),
        "parameters": summary.parameters,
        "config_hash": config_hash(run.config()),
        "weights_sha256": _model_hash(run),
        "dataset": dataset if dataset.startswith("rucio:") else str(manifest.get("key", "")),
        "dataset_key": str(manifest.get("key", "")),
        "inputs": names[:_MAX_NAMES],
        "dids": [name.removeprefix("rucio:") for name in (dataset, *names) if name.startswith("rucio:")][:_MAX_NAMES],
        "clew_version": __version__,
    }


def config_hash(config: Document) -> str:
    """Hash of the training settings, without the locations of data and store."""
    train = {name: value for name, value in config.data.get("train", {}).items() if name not in ("dataset", "store")}
    text = json.dumps({**config.data, "train": train}, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _best_validation(run: Run) -> Mapping[str, Any]:
    """The validation record of the best weights."""
    best = run.config().data.get("train", {}).get("best", {})
    metric = best.get("metric", "loss")
    sign = -1 if (best.get("direction") or natural_direction(metric)) == "maximize" else 1
    validations = [each for each in run.history(run.main_stream) if each["kind"] == "validation"]
    validations = [each for each in validations if not each.get("partial")] or validations  # rounds of an estimator
    with_metric = [each for each in validations if _is_number(each["metrics"].get(metric))]
    return (
        min(with_metric, key=lambda each: sign * each["metrics"][metric])
        if with_metric
        else validations[-1]
        if validations
        else {}
    )


def _evaluation_values(run: Run) -> dict[str, float]:
    return {
        _identifier(f"{title}_{name}"): item["value"]
        for title, record in run.evaluations().items()
        for name, item in record["metrics"].items()
        if _is_number(item["value"])
    }


def _identifier(name: str) -> str:
    """`name` as an identifier that an expression can contain."""
    return "".join(sign if sign.isalnum() else "_" for sign in name)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
