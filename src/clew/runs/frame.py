"""All runs of a folder as a pandas data frame."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clew.errors import ClewError, ConfigError, RunError
from clew.runs.folder import RUNS, Run
from clew.runs.listing import RunListing, list_run

if TYPE_CHECKING:
    from pandas import DataFrame


def runs_frame(folder: str | Path = RUNS) -> DataFrame:
    """Return one row per run of a folder, newest last.

    Columns: name, state, recipe, epochs, seconds and others, then one column per metric of the last validation (with
    the metric's name), then one column per setting (`train.optimizer.lr`, `model.hidden`).

    Args:
        folder: The folder that holds the runs.

    Raises:
        RunError: There is no such folder.
        ConfigError: pandas is not installed.
    """
    try:
        import pandas
    except ImportError:
        raise ConfigError("clew.runs() returns a pandas data frame; install it with: pip install pandas") from None
    folder = Path(folder)
    if not folder.is_dir():
        raise RunError(f"{folder}: no such folder; runs are in {RUNS}/ unless --output names another place")
    runs = [Run(path.parent) for path in sorted(folder.glob("*/config.yaml"))]
    rows = [_row(run) for run in runs]
    rows.sort(key=lambda row: row["started"] or datetime.min.replace(tzinfo=UTC))
    return pandas.DataFrame(rows, index=[row["name"] for row in rows]).drop(columns="name", errors="ignore")


def _row(run: Run) -> dict[str, Any]:
    facts = list_run(run)
    return {**_facts(facts), **facts.metrics, **_settings(run)}


def _facts(facts: RunListing) -> dict[str, Any]:
    return {
        "name": facts.name,
        "state": facts.state,
        "recipe": facts.recipe,
        "workers": facts.workers,
        "epochs": facts.epochs,
        "epochs_done": facts.epochs_done,
        "started": datetime.fromtimestamp(facts.started, UTC) if facts.started else None,
        "seconds": facts.seconds,
        "message": facts.message,
        "path": facts.path,
    }


def _settings(run: Run) -> dict[str, Any]:
    """Return the settings of a run by dotted name. A run that is damaged has none."""
    try:
        data = run.config().data
    except (ClewError, OSError):
        return {}
    return _flat({name: value for name, value in data.items() if name != "recipe"}, "")


def _flat(data: dict[str, Any], prefix: str) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in data.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) and value else {f"{prefix}{name}": value}
    return flat
