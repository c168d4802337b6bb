"""The recipe and the training settings of a run, built again from what the run recorded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from clew.core.config import Document, validate
from clew.errors import RecipeError
from clew.models.columns import Columns
from clew.recipe import Recipe, find, resolve
from clew.runs import Run
from clew.training.config import TrainConfig


def recipe_of_run(run: Run, recipe: Any = None) -> tuple[Recipe, TrainConfig]:
    """Return the recipe and the training settings of a run.

    Args:
        run: The run.
        recipe: The recipe or the model itself, if it was typed into a notebook. Not needed for a run that was trained
            in this process.

    Raises:
        RecipeError: The recipe cannot be loaded again.
    """
    if recipe is None and run.recipe is not None:
        return run.recipe, _train_config(run.config())
    if recipe is None and not run.config().data.get("recipe"):
        raise RecipeError(f"{run.path}: its recipe was typed in and cannot be loaded again; pass it as recipe=")
    return _build(run.config(), recipe)


def recipe_from_settings(data: Mapping[str, Any]) -> tuple[Recipe, TrainConfig]:
    """Return the same for a run on another host, from its settings.

    Raises:
        RecipeError: The recipe cannot be loaded here.
    """
    if not data.get("recipe"):
        raise RecipeError("the master's recipe was typed in; save it in a file and start the master with that file")
    return _build(Document(dict(data), source="the master"))


def _build(document: Document, recipe: Any = None) -> tuple[Recipe, TrainConfig]:
    location = str(document.data.get("recipe", ""))
    model = recipe if isinstance(recipe, nn.Module) else None
    kind = find(location) if recipe is None or model is not None else type(resolve(recipe))
    values = {name: value for name, value in document.data.items() if name in kind.Config.model_fields}
    config = validate(kind.Config, Document(values, document.places, document.source))
    return kind(config) if model is None else Columns(config, model=model), _train_config(document)


def _train_config(document: Document) -> TrainConfig:
    return validate(TrainConfig, Document(document.data.get("train", {}), {}, document.source))
