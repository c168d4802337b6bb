"""The recipe and the training settings of a run, built again from what the run recorded."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any

from torch import nn

from clew.core.config import Document, validate
from clew.errors import ClewError, RecipeError
from clew.models.columns import Columns
from clew.recipe import Recipe, find, resolve
from clew.runs import Run
from clew.runs.folder import find_run_path
from clew.runs.run_trust import check_run_trust, trust_run
from clew.runs.saved_code import SavedCode
from clew.training.config import TrainConfig
from clew.training.run_code import saved_recipe, warn_about_code, with_saved_places


def recipe_of_run(
    run: Run, recipe: Any = None, *, current_code: bool = False, trust: bool = False
) -> tuple[Recipe, TrainConfig]:
    """Return the recipe and the training settings of a run. The code is the one that the run was trained with.

    Args:
        run: The run.
        recipe: The recipe or the model itself, if it was typed into a notebook. Not needed for a run that was trained
            in this process.
        current_code: Whether to use today's code of the recipe instead of the one that the run saved.
        trust: Whether the user trusts the code of the run from now on, wherever it came from.

    Raises:
        RecipeError: The recipe cannot be loaded again.
        RunError: The run came from elsewhere, and its code was not trusted.

    Warns:
        CodeWarning: Today's code differs from that of the run.
    """
    if recipe is None and run.recipe is not None and not current_code:
        return run.recipe, _train_config(run.config())
    if trust:
        trust_run(run)
    check_run_trust(run, recipe=recipe is None)
    if recipe is None and not run.config().data.get("recipe"):
        raise RecipeError(f"{run.path}: its recipe was typed in and cannot be loaded again; pass it as recipe=")
    code = SavedCode.of_run(run)
    if recipe is not None or code is None:
        return _build(run.config(), recipe)
    if current_code:
        loaded, config = _build(run.config())
        warn_about_code(run, code, loaded, current=True)
        return loaded, config
    loaded, config = _build(run.config(), kind=saved_recipe(run, code), adapt=partial(with_saved_places, run, code))
    with contextlib.suppress(ClewError):  # today's code may be gone, or broken: the run does not need it
        warn_about_code(run, code, _build(run.config())[0], current=False)
    return loaded, config


def warn_if_code_changed(name: str | Path) -> None:
    """Warn if the settings of a run are used again and today's code, which is used then, differs from that of the run.

    Args:
        name: Folder or name of a run. Nothing is done for anything else, such as a recipe.

    Warns:
        CodeWarning: Today's code differs from that of the run.
    """
    run = Run(find_run_path(name))
    code = SavedCode.of_run(run) if run.config_file.is_file() else None
    if code is not None:
        check_run_trust(run)
        with contextlib.suppress(ClewError):  # code that cannot be loaded is reported where it is used
            warn_about_code(run, code, _build(run.config())[0], current=True)


def recipe_from_settings(data: Mapping[str, Any]) -> tuple[Recipe, TrainConfig]:
    """Return the same for a run on another host, from its settings.

    Raises:
        RecipeError: The recipe cannot be loaded here.
    """
    if not data.get("recipe"):
        raise RecipeError("the master's recipe was typed in; save it in a file and start the master with that file")
    return _build(Document(dict(data), source="the master"))


def _build(
    document: Document,
    recipe: Any = None,
    *,
    kind: type[Recipe] | None = None,
    adapt: Callable[[Any], Any] = lambda config: config,
) -> tuple[Recipe, TrainConfig]:
    location = str(document.data.get("recipe", ""))
    recipe = recipe() if isinstance(recipe, FunctionType) else recipe  # a function that makes the model
    model = recipe if isinstance(recipe, nn.Module) else None
    if kind is None:
        kind = find(location) if recipe is None or model is not None else type(resolve(recipe))
    values = {name: value for name, value in document.data.items() if name in kind.Config.model_fields}
    config = adapt(validate(kind.Config, Document(values, document.places, document.source)))
    if model is not None and issubclass(kind, Columns):
        return kind(config, model=model), _train_config(document)
    return kind(config), _train_config(document)


def _train_config(document: Document) -> TrainConfig:
    return validate(TrainConfig, Document(document.data.get("train", {}), {}, document.source))
