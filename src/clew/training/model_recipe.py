"""From what a user without a recipe hands over to a recipe and a dataset."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np

from clew import readers
from clew.core.files import sha256
from clew.data.dataset import Dataset
from clew.data.prepare import api as prepare
from clew.data.prepare.inputs import locations
from clew.data.table import Table
from clew.errors import ConfigError
from clew.models import loading
from clew.models.columns import FEATURES, LABELS, Columns, ColumnsConfig, guess_columns
from clew.recipe import Recipe, load_code, resolve
from clew.storage import cache_folder


def is_model(given: Any) -> bool:
    """Whether this is a model or the place of one, rather than a recipe."""
    if isinstance(given, (str, Path)):
        return ".py:" in str(given) or Path(given).suffix in loading.MODEL_ENDINGS
    if isinstance(given, (FunctionType, type)):
        return not (isinstance(given, type) and issubclass(given, Recipe))
    return loading.is_keras(given) or loading.is_module(given)


def recipe_for(
    model: Any, train: Any, *, columns: Mapping[str, Any], loss: str, arguments: Mapping[str, Any], **more: Any
) -> Columns:
    """The recipe for a model; features and labels that are not told are those of the usual names. `more` are other
    settings of the model.

    Raises:
        ConfigError, RecipeError: model or loss cannot be found or made.
    """
    chosen = {name: value for name, value in columns.items() if value}
    for name in ("features", "labels"):
        if isinstance(chosen.get(name), str):
            chosen[name] = tuple(part.strip() for part in chosen[name].split(","))
    if "features" not in chosen or "labels" not in chosen:
        features, labels = guess_columns(_first(train))
        chosen = {"features": (features,), "labels": (labels,), **chosen}
    build = _absolute(str(model)) if isinstance(model, (str, Path)) else ""
    if ":" in _absolute(loss):
        load_code(_absolute(loss))  # what is not there is told before anything is made
    settings = {
        "columns": chosen,
        "model": {"build": build, "arguments": dict(arguments), **more},
        "loss": _absolute(loss),
    }
    made = Columns(ColumnsConfig.model_validate(settings), model=None if build else _handed(model, arguments))
    if ":" in build:
        load_code(build)
    elif build or loading.is_keras(made.handed):
        made.model()
    resolve(made)
    return made


def _handed(model: Any, arguments: Mapping[str, Any]) -> Any:
    """A model handed over in Python, or made by what was."""
    if not isinstance(model, (FunctionType, type)):
        return model
    try:
        made = model(**arguments)
    except TypeError as error:
        raise ConfigError(f"{model.__name__} cannot be called with {dict(arguments)}: {error}") from error
    return loading.check_is_model(made, model.__name__)


def dataset_for(recipe: Columns, train: Any, val: Any, *, root: Path, progress: Callable[..., Any] | None) -> Dataset:
    """The dataset of what was handed over: made now, or found under `root` from an earlier time."""
    recipe = Columns(recipe.config)  # a model does not travel to processes that only prepare
    inputs: dict[str, Any] = {"input": _patterns(train), "split": {"train": 0.8, "val": 0.2}}
    if val is not None:
        inputs = {"input": {"train": _patterns(train), "val": _patterns(val)}}
    place = root / "datasets" / prepare.key(recipe, **inputs)[:16]
    return prepare.prepare(recipe, output=str(place), executor="processes", progress=progress, **inputs)


def _patterns(given: Any) -> list[str]:
    """Files to read: those named, or one written for data in memory."""
    if isinstance(given, (str, Path)):
        return [str(given)]
    if isinstance(given, list) and given and all(isinstance(each, (str, Path)) for each in given):
        return [str(each) for each in given]
    return [str(_written(_table(given)))]


def _first(given: Any) -> Table:
    """A few events, to see what the columns are."""
    if isinstance(given, (str, Path)) or (isinstance(given, list) and given and isinstance(given[0], (str, Path))):
        return readers.read(locations(_patterns(given))[0])[0]
    return _table(given)


def _table(given: Any) -> Table:
    """Data in memory as a table: a table, arrays by name, a data frame, or (features, labels[, weights]).

    Raises:
        ConfigError: it is nothing of the kind.
    """
    if isinstance(given, Table):
        return given
    if isinstance(given, Mapping):
        return Table({str(name): _array(value) for name, value in given.items()})
    if isinstance(given, (tuple, list)) and len(given) in (2, 3):
        return Table(dict(zip((FEATURES, LABELS, "weight"), map(_array, given), strict=False)))
    if hasattr(given, "columns") and hasattr(given, "to_numpy"):
        return Table({str(name): given[name].to_numpy() for name in given.columns})
    raise ConfigError(
        f"cannot train on a {type(given).__name__}; give files, a clew.Table, arrays by name, a data frame, or (X, y)"
    )


def _array(value: Any) -> Any:
    return value.detach().cpu().numpy() if hasattr(value, "detach") else np.asarray(value)


def _written(table: Table) -> Path:
    """A file with this table, called by its content."""
    folder = cache_folder() / "tables"
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f".draft-{id(table)}.h5"
    table.save(draft)
    return draft.rename(folder / f"{sha256(draft)[:16]}.h5")


def _absolute(place: str) -> str:
    """A place of code that is understood from any folder."""
    if Path(place).suffix in loading.MODEL_ENDINGS:
        return str(Path(place).resolve())
    where, colon, name = place.rpartition(":")
    return f"{Path(where).resolve()}{colon}{name}" if where.endswith(".py") else place


def run_name(recipe: Columns) -> str:
    """What a run of this recipe is called."""
    build = recipe.config.model.build
    if build:
        return Path(build.rpartition(":")[0] or build).stem
    handed = recipe.handed
    return str(handed.name if loading.is_keras(handed) else type(handed).__name__).lower()
