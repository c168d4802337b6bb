"""Training without a recipe: makes a recipe and a dataset from a plain model and plain data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any, Protocol, TypeAlias

from clew import readers
from clew.core.files import sha256
from clew.data.dataset import Dataset
from clew.data.prepare import api as prepare
from clew.data.prepare.inputs import expand_patterns
from clew.data.table import Table, in_memory
from clew.errors import ConfigError
from clew.models import loading
from clew.models.columns import FEATURES, LABELS, Columns, guess_columns
from clew.recipe import Recipe, load_code, resolve
from clew.storage import cache_folder


class DataFrame(Protocol):
    """A data frame, for example of pandas."""

    @property
    def columns(self) -> Any:
        """Names of the columns."""

    def to_numpy(self) -> Any:
        """All values as an array."""


TrainingData: TypeAlias = str | Path | Sequence[Any] | Mapping[str, Any] | Table | DataFrame
"""Files or globs, a table, arrays by name, a data frame, or (features, labels[, weights])."""


def is_model(thing: Any) -> bool:
    """Whether this is a model, or the location of one, and not a recipe."""
    if isinstance(thing, (str, Path)):
        return ".py:" in str(thing) or Path(thing).suffix in loading.MODEL_ENDINGS
    if isinstance(thing, (FunctionType, type)):
        return not (isinstance(thing, type) and issubclass(thing, Recipe))
    return loading.is_keras(thing) or loading.is_module(thing) or loading.is_estimator(thing)


def recipe_for(
    model: Any, data: Any, *, columns: Mapping[str, Any], loss: str, arguments: Mapping[str, Any], **options: Any
) -> Columns:
    """Return a recipe for a model.

    Args:
        model: A model, a function that makes one, or the location of one of them; None if `options` name an estimator.
        data: The training data. Features and labels that `columns` does not name are searched in it.
        columns: Settings of `clew.models.columns.InputColumns`; None for a default.
        loss: Name or location of the loss.
        arguments: Arguments of the function that makes the model.
        **options: Further settings of `clew.models.columns.ModelSource`.

    Raises:
        ConfigError, RecipeError: The model or the loss does not exist or cannot be made.
    """
    chosen = {name: value for name, value in columns.items() if value}
    for name in ("features", "labels"):
        if isinstance(chosen.get(name), str):
            chosen[name] = tuple(part.strip() for part in chosen[name].split(","))
    if "features" not in chosen or "labels" not in chosen:
        features, labels = guess_columns(_first_table(data))
        chosen = {"features": (features,), "labels": (labels,), **chosen}
    build = _absolute_location(str(model)) if isinstance(model, (str, Path)) else ""
    if ":" in _absolute_location(loss):
        load_code(_absolute_location(loss))  # report a missing loss before anything is built
    made = None if build else _make_model(model, arguments)
    if options.get("estimator"):
        options["estimator"] = _absolute_location(options["estimator"])
    elif loading.is_estimator(made) and not loading.is_module(made):
        made, (options["estimator"], arguments) = None, loading.estimator_reference(made)
    settings = {
        "columns": chosen,
        "model": {"build": build, "arguments": dict(arguments), **options},
        "loss": _absolute_location(loss),
    }
    kind = _recipe_class(load_code(build) if ":" in build else made, arguments)
    recipe = kind(kind.Config.model_validate(settings), model=made)
    if kind is not Columns:
        _check_own_loss(loss, recipe.model())
    elif ":" in build:
        pass
    elif build or recipe.has_estimator or loading.is_keras(recipe.model_object):
        recipe.model()
    resolve(recipe)
    return recipe


def _recipe_class(model: Any, arguments: Mapping[str, Any]) -> type[Columns]:
    """Return the recipe for a model, or for the class or function that makes it."""
    if isinstance(model, FunctionType) and loading.lightning_is_loaded():
        model = _make_model(model, arguments)
    return loading.lightning_recipe() if loading.is_lightning(model) else Columns


def _check_own_loss(loss: str, model: Any) -> None:
    if loss != "auto":
        raise ConfigError(
            f"--loss {loss}: {type(model).__name__} is a LightningModule, whose training_step has the loss"
        )


def _make_model(model: Any, arguments: Mapping[str, Any]) -> Any:
    """Return a model that was passed in Python, or the one that a function makes."""
    if not isinstance(model, (FunctionType, type)):
        return model
    try:
        made = model(**arguments)
    except TypeError as error:
        raise ConfigError(f"{model.__name__} cannot be called with {dict(arguments)}: {error}") from error
    return made if loading.is_estimator(made) else loading.check_is_model(made, model.__name__)


def dataset_for(recipe: Columns, train: Any, val: Any, *, root: Path, progress: Callable[..., Any] | None) -> Dataset:
    """Prepare the dataset of the data of a user, or find under `root` the one that was prepared before.

    Args:
        recipe: The recipe of the model.
        train: The training data.
        val: The validation data. None: one fifth of the training data.
        root: Folder under which datasets are kept.
        progress: Called with the progress of the preparation.
    """
    recipe = type(recipe)(recipe.config)  # processes that only prepare data do not need the model
    inputs: dict[str, Any] = {"input": _patterns(train), "split": {"train": 0.8, "val": 0.2}}
    if val is not None:
        inputs = {"input": {"train": _patterns(train), "val": _patterns(val)}}
    folder = root / "datasets" / prepare.dataset_key(recipe, **inputs)[:16]
    return prepare.prepare(recipe, output=str(folder), executor="processes", progress=progress, **inputs)


def _is_files(data: Any) -> bool:
    if isinstance(data, list) and data:
        return all(isinstance(item, (str, Path)) for item in data)
    return isinstance(data, (str, Path))


def _patterns(data: Any) -> list[str]:
    """The files to read. Data in memory is written to a file first."""
    if _is_files(data):
        return [str(item) for item in data] if isinstance(data, list) else [str(data)]
    return [str(_write_table(_to_table(data)))]


def _first_table(data: Any) -> Table:
    """The first events, to read the names of the columns."""
    if not _is_files(data):
        return _to_table(data)
    pieces = readers.read(expand_patterns(_patterns(data))[0])
    return pieces.with_items(())[0]  # names only: which columns are the same items need not be known


def _to_table(data: Any) -> Table:
    """Data in memory as a table.

    Raises:
        ConfigError: The data has none of the supported forms.
    """
    if isinstance(data, (tuple, list)) and len(data) in (2, 3):
        return Table(dict(zip((FEATURES, LABELS, "weight"), map(in_memory.to_column, data), strict=False)))
    if in_memory.is_plain_array(data):
        raise ConfigError("an array has no labels; pass (X, y), a clew.Table, arrays by name, a data frame or files")
    return in_memory.to_table(data)


def _write_table(table: Table) -> Path:
    """Write a table to a file that is named after its content."""
    folder = cache_folder() / "tables"
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f".draft-{id(table)}.h5"
    table.save(draft)
    return draft.rename(folder / f"{sha256(draft)[:16]}.h5")


def _absolute_location(location: str) -> str:
    """A location of code or of a file that is valid in any working directory."""
    if Path(location).suffix in loading.MODEL_ENDINGS:
        return str(Path(location).resolve())
    file, colon, name = location.rpartition(":")
    return f"{Path(file).resolve()}{colon}{name}" if file.endswith(".py") else location


def run_name(recipe: Columns) -> str:
    """The name of a run of this recipe, made from the name of its model."""
    build, estimator = recipe.config.model.build, recipe.config.model.estimator
    if estimator and not estimator.partition(":")[0].endswith(".py"):
        return str(estimator.rpartition(":")[2].lower())
    build = build or estimator
    if build:
        return Path(build.rpartition(":")[0] or build).stem
    model = recipe.model_object
    return str(model.name if loading.is_keras(model) else type(model).__name__).lower()
