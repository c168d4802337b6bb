"""What is known of a run's model, as plain JSON: the numbers it is found by, and where it came from."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clew.core.config import Document
from clew.core.files import sha256
from clew.errors import RunError
from clew.runs import Run
from clew.runs.summary import summarize
from clew.version import __version__

SIDECAR = "clew.json"
_NAMED = 100
"""Inputs whose names are kept; there may be thousands."""


def model_weights(run: Run) -> Path:
    """The weights that are kept: the best, or the last where nothing was validated.

    Raises:
        RunError: there are none.
    """
    for name in ("best", "last"):
        if run.checkpoint(name).is_file():
            return run.checkpoint(name)
    raise RunError(f"{run.path}: no weights to store; did the run finish its first epoch?")


def model_facts(run: Run) -> dict[str, Any]:
    """Metrics as numbers (`val_loss`, `test_accuracy`, ...), hashes, versions and data.

    A model that was brought from a store has no records of its training: what was known then stays.
    """
    if (run.path / SIDECAR).is_file():
        return {**json.loads((run.path / SIDECAR).read_text()), **_evaluated(run)}
    summary, config, best = summarize(run), run.config().data, _best(run)
    manifest: Mapping[str, Any] = json.loads(run.dataset_file.read_text()) if run.dataset_file.is_file() else {}
    names = [each["name"] for each in manifest.get("inputs", ())]
    dataset = str(config.get("train", {}).get("dataset", ""))
    return {
        "clew": "model",
        "format": 1,
        "run": run.name,
        "recipe": Path(summary.recipe).stem,
        "state": summary.state,
        "metric": config.get("train", {}).get("best", {}).get("metric", "loss"),
        **{_plain(f"val_{name}"): value for name, value in best.get("metrics", {}).items() if _number(value)},
        **_evaluated(run),
        "epoch": best.get("epoch", 0),
        "step": best.get("step", 0),
        "parameters": summary.parameters,
        "config_hash": config_hash(run.config()),
        "weights_sha256": sha256(model_weights(run)),
        "dataset": dataset if dataset.startswith("rucio:") else str(manifest.get("key", "")),
        "dataset_key": str(manifest.get("key", "")),
        "inputs": names[:_NAMED],
        "dids": [name.removeprefix("rucio:") for name in (dataset, *names) if name.startswith("rucio:")][:_NAMED],
        "clew_version": __version__,
    }


def config_hash(config: Document) -> str:
    """Identity of the settings a model was trained with: where data lies and goes does not count."""
    train = {name: value for name, value in config.data.get("train", {}).items() if name not in ("dataset", "store")}
    said = json.dumps({**config.data, "train": train}, sort_keys=True, default=str)
    return hashlib.sha256(said.encode()).hexdigest()


def _best(run: Run) -> Mapping[str, Any]:
    """The validation of the best weights."""
    wish = run.config().data.get("train", {}).get("best", {})
    metric, sign = wish.get("metric", "loss"), -1 if wish.get("direction", "minimize") == "maximize" else 1
    found = [each for each in run.history(run.lead) if each["kind"] == "validation"]
    known = [each for each in found if _number(each["metrics"].get(metric))]
    return min(known, key=lambda each: sign * each["metrics"][metric]) if known else found[-1] if found else {}


def _evaluated(run: Run) -> dict[str, float]:
    return {
        _plain(f"{title}_{name}"): item["value"]
        for title, record in run.evaluations().items()
        for name, item in record["metrics"].items()
        if _number(item["value"])
    }


def _plain(name: str) -> str:
    """A name that a condition can use."""
    return "".join(sign if sign.isalnum() else "_" for sign in name)


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
