"""Store, find and fetch models."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from clew import storage
from clew.core.files import remove, sha256
from clew.core.trust import ORIGIN, mark_origin
from clew.data.expression import Expression, is_true
from clew.data.table import Table
from clew.errors import ConfigError, DataError, nearest
from clew.runs import Run
from clew.runs.report import write_report
from clew.runs.run_trust import trust_own_run
from clew.storage import ProgressCallback, rucio
from clew.storage.models.config import PARTS
from clew.storage.models.model_card import SIDECAR, check_model_format, model_facts, model_files
from clew.storage.models.shipped import find_shipped

_READ_THREADS = 8


@dataclass(frozen=True)
class StoredModel:
    """A stored model: its location and its facts."""

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
    """Write the model of a run to a store. A second call sends only the files that have changed.

    Args:
        run: The run.
        to: A folder or a URL; the model becomes a folder in it.
        what: What to store besides the model; see `StoreConfig.what`.
        name: Name of the folder; default: the run's name and a part of the weights' hash.
        watch: Called with the progress.

    Returns:
        The location of the stored model.

    Raises:
        DataError: The store cannot be written.
        RunError: The run has no model yet.
    """
    for part in what:
        if part not in PARTS:
            raise ConfigError(f"store what: there is no '{part}'{nearest(part, PARTS)}")
    facts = model_facts(run)
    if {"report", "all"} & set(what):
        write_report(run)
    trust_own_run(run)
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
    """The models stored at a location that fulfil a condition.

    Args:
        place: A folder, a prefix in S3, or a scope of Rucio.
        where: An expression of their facts, such as `val_loss < 0.2 and test_accuracy > 0.9`. A model without one of
            these numbers does not match.

    Raises:
        ConfigError: The expression is invalid, or no model has a number of that name.
        DataError: The location cannot be read.
    """
    condition = Expression(where) if where is not None else None
    models = _list_models(place)
    if condition is None or not models:
        return models
    names = {name for each in models for name, value in each.facts.items() if _is_number(value)}
    for name in condition.names:
        if name not in names:
            raise ConfigError(f"--where {where}: no model has a number '{name}'{nearest(name, names)}")
    columns = {name: np.array([_float(each.facts.get(name)) for each in models]) for name in sorted(names)}
    missing = np.any([np.isnan(columns[name]) for name in condition.names], axis=0) if condition.names else False
    holds = is_true(np.asarray(condition.evaluate(Table(columns)))) & ~np.asarray(missing)
    return [each for each, yes in zip(models, np.broadcast_to(holds, len(models)), strict=True) if yes]


def fetch_model(location: str, output: str | Path, *, watch: ProgressCallback | None = None) -> Run:
    """Copy a stored model to a local folder, check its files, and open it as a run.

    The folder is marked as brought from elsewhere: code that it brings is not executed before it is trusted.

    Raises:
        DataError: It is not a model, or its files have changed.
    """
    path, no_model = Path(output), f"{storage.mask_secrets(location)}: not a model of clew (no {SIDECAR} in it)"
    in_rucio = storage.scheme(location) == "rucio"  # whose names cannot be looked up one by one
    if not in_rucio and not storage.expand(storage.join(location, SIDECAR)):
        raise DataError(no_model)  # before a large folder is copied
    with _marked(path, storage.mask_secrets(location)):
        storage.copy(location, path, watch=watch)
    try:
        facts = json.loads((path / SIDECAR).read_text())
    except (OSError, ValueError):
        raise DataError(no_model) from None
    check_model_format(storage.mask_secrets(location), facts)
    for inner, expected in facts["files"].items():
        if not (path / inner).is_file() or sha256(path / inner) != expected["sha256"]:
            raise DataError(f"{path / inner}: differs from the stored file (checksum mismatch); fetch it again")
    (path / "records").mkdir(exist_ok=True)
    (path / "plots").mkdir(exist_ok=True)
    return Run.open(path)


def open_run(location: str | Path, *, runs: Path = Path("runs"), watch: ProgressCallback | None = None) -> Run:
    """Open a run or a stored model. A model in a store is first fetched to the folder of its name in `runs`.

    Args:
        location: A folder, the URL of a model in a store, or the name of a model of `clew model list`.
        runs: The folder to which models are fetched.
        watch: Called with the progress.

    Raises:
        RunError, DataError: There is no run or model at this location.
    """
    if storage.is_url(str(location)):
        source = str(location)
    else:
        local = storage.local_path(str(location))
        shipped = None if local.exists() else find_shipped(location)
        if shipped is None:
            return Run.open(local)
        source = str(shipped)
    path = runs / storage.base_name(source)
    return Run.open(path) if path.exists() else fetch_model(source, path, watch=watch)


@contextlib.contextmanager
def _marked(path: Path, origin: str) -> Iterator[None]:
    """Mark a folder before files arrive in it, so that an interrupted copy is marked. An empty folder is removed."""
    mark_origin(path, origin)
    try:
        yield
    finally:
        if [each.name for each in path.iterdir()] == [ORIGIN]:
            remove(path)


def _paths(run: Run, what: Sequence[str]) -> dict[str, Path]:
    """The files to store, by their path in the run folder.

    A link that leads out of the folder is left out: it could be any file of the user.
    """
    root = run.path.resolve()
    paths = [run.config_file, run.environment_file, run.dataset_file, *model_files(run), *run.code_folder.rglob("*")]
    folders = {"plots": run.plots, "records": run.records_folder, "checkpoints": run.checkpoints}
    for part, folder in folders.items():
        paths += folder.rglob("*") if {part, "all"} & set(what) else ()
    paths += [run.report_file] if {"report", "all"} & set(what) else []
    paths += run.path.glob("*.py")
    inside = [path for path in paths if path.is_file() and root in path.resolve().parents]
    return {str(path.relative_to(run.path)): path for path in inside if path.name[0] != "."}


def _list_models(place: str) -> list[StoredModel]:
    if storage.scheme(place) == "rucio":
        with storage.one_line_errors(place):
            return [StoredModel(location, facts) for location, facts in rucio.search(place, "model")]
    base = place.rstrip("/")
    names = storage.expand(f"{base}/{SIDECAR}") or storage.expand(f"{base}/*/{SIDECAR}")
    if not names and not storage.is_url(place) and not storage.local_path(place).is_dir():
        raise DataError(f"{place}: no such folder")
    with ThreadPoolExecutor(_READ_THREADS) as pool:
        return list(pool.map(_read, names))


def _read(name: str) -> StoredModel:
    try:
        facts = dict(json.loads(storage.read(name)))
    except (ValueError, TypeError) as error:
        raise DataError(f"{storage.mask_secrets(name)}: not a file that clew wrote ({error})") from error
    check_model_format(storage.mask_secrets(name), facts)
    return StoredModel(storage.parent_location(name), facts)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _float(value: Any) -> float:
    return float(value) if _is_number(value) else float("nan")
