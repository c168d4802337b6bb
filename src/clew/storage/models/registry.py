"""Keeping, finding and bringing models."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from clew import storage
from clew.core.files import sha256
from clew.data.expression import Expression, truth
from clew.data.table import Table
from clew.errors import ConfigError, DataError, nearest
from clew.runs import Run
from clew.runs.report import write_report
from clew.storage import ProgressCallback, rucio
from clew.storage.models.config import PARTS
from clew.storage.models.model_card import SIDECAR, model_facts, model_weights

_READERS = 8


@dataclass(frozen=True)
class StoredModel:
    """A kept model: where it is, and what is known of it."""

    location: str
    facts: dict[str, Any]


def store_model(
    run: Run,
    to: str,
    what: Sequence[str] = ("model",),
    *,
    name: str | None = None,
    watch: ProgressCallback | None = None,
) -> str:
    """Put a run's model, and what else is asked for, at a place of its own below `to`; returns that place.

    Called again, it sends only what has changed since.

    Raises:
        DataError, RunError: the store cannot be written, or there is no model yet.
    """
    for part in what:
        if part not in PARTS:
            raise ConfigError(f"store what: there is no '{part}'{nearest(part, PARTS)}")
    facts = model_facts(run)
    if {"report", "all"} & set(what):
        write_report(run)
    target = storage.join(to, name or f"{run.name}-{facts['weights_sha256'][:8]}")
    paths = _paths(run, what)
    facts["files"] = {inner: {"bytes": path.stat().st_size, "sha256": sha256(path)} for inner, path in paths.items()}
    staging = storage.cache_folder() / "transfers"
    staging.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=staging, prefix="model-") as folder:
        for inner, path in paths.items():
            (Path(folder) / inner).parent.mkdir(parents=True, exist_ok=True)
            (Path(folder) / inner).symlink_to(path.resolve())
        (Path(folder) / SIDECAR).write_text(json.dumps(facts, indent=1) + "\n")
        storage.copy(folder, target, watch=watch, replace=True)
    if storage.scheme(target) == "rucio":
        with storage.one_line_errors(target, "written"):
            rucio.describe(target, {each: value for each, value in facts.items() if each != "files"})
    return target.partition("?")[0]


def find_models(place: str, where: str | None = None) -> list[StoredModel]:
    """The models kept below a place (a folder, a prefix in S3, a scope of Rucio) for which a condition holds.

    `where` is an expression of their numbers, as `val_loss < 0.2 and test_accuracy > 0.9`; a model that lacks one of
    them does not match.

    Raises:
        ConfigError: the condition is none, or names what no model has.
        DataError: the place cannot be read.
    """
    condition = Expression(where) if where is not None else None
    found = _listed(place)
    if condition is None or not found:
        return found
    names = {name for each in found for name, value in each.facts.items() if _number(value)}
    for name in condition.names:
        if name not in names:
            raise ConfigError(f"--where {where}: no model has a number '{name}'{nearest(name, names)}")
    columns = {name: np.array([_float(each.facts.get(name)) for each in found]) for name in sorted(names)}
    lacking = np.any([np.isnan(columns[name]) for name in condition.names], axis=0) if condition.names else False
    holds = truth(np.asarray(condition.evaluate(Table(columns)))) & ~np.asarray(lacking)
    return [each for each, yes in zip(found, np.broadcast_to(holds, len(found)), strict=True) if yes]


def fetch_model(location: str, output: str | Path, *, watch: ProgressCallback | None = None) -> Run:
    """Bring a kept model to a folder of this machine, whole and unchanged, and open it as a run.

    Raises:
        DataError: it is no model, or its files are not those that were kept.
    """
    path = Path(output)
    storage.copy(location, path, watch=watch)
    try:
        facts = json.loads((path / SIDECAR).read_text())
    except (OSError, ValueError):
        raise DataError(f"{storage.mask_secrets(location)}: no model of clew's (there is no {SIDECAR} in it)") from None
    for inner, said in facts["files"].items():
        if not (path / inner).is_file() or sha256(path / inner) != said["sha256"]:
            raise DataError(f"{path / inner}: not what was stored (checksum mismatch); bring it again")
    (path / "records").mkdir(exist_ok=True)
    (path / "plots").mkdir(exist_ok=True)
    return Run.open(path)


def open_run(location: str | Path, *, runs: Path = Path("runs"), watch: ProgressCallback | None = None) -> Run:
    """A run or a kept model: from its folder, or brought from a store to the folder of that name under `runs`.

    Raises:
        RunError, DataError: it is none.
    """
    if not storage.is_url(str(location)):
        return Run.open(storage.local_path(str(location)))
    path = runs / storage.base_name(str(location))
    return Run.open(path) if path.exists() else fetch_model(str(location), path, watch=watch)


def _paths(run: Run, what: Sequence[str]) -> dict[str, Path]:
    """The files to keep, by their path in the run's folder."""
    weights = model_weights(run)
    kept = [run.config_file, run.environment_file, run.dataset_file, weights]
    folders = {"plots": run.plots, "records": run.records_folder, "checkpoints": run.checkpoints}
    for part, folder in folders.items():
        kept += folder.rglob("*") if {part, "all"} & set(what) else ()
    kept += [run.report_file] if {"report", "all"} & set(what) else []
    kept += run.path.glob("*.py")
    return {str(path.relative_to(run.path)): path for path in kept if path.is_file() and path.name[0] != "."}


def _listed(place: str) -> list[StoredModel]:
    if storage.scheme(place) == "rucio":
        with storage.one_line_errors(place):
            return [StoredModel(location, facts) for location, facts in rucio.search(place, "model")]
    base = place.rstrip("/")
    names = storage.expand(f"{base}/{SIDECAR}") or storage.expand(f"{base}/*/{SIDECAR}")
    if not names and not storage.is_url(place) and not storage.local_path(place).is_dir():
        raise DataError(f"{place}: no such folder")
    with ThreadPoolExecutor(_READERS) as pool:
        return list(pool.map(_read, names))


def _read(name: str) -> StoredModel:
    try:
        return StoredModel(storage.parent_location(name), dict(json.loads(storage.read(name))))
    except ValueError as error:
        raise DataError(f"{storage.mask_secrets(name)}: not what clew wrote ({error})") from error


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _float(value: Any) -> float:
    return float(value) if _number(value) else float("nan")
