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


def recipe_of_run(run: Run, given: Any = None) -> tuple[Recipe, TrainConfig]:
    """The recipe (found again, unless it or its model is given or it was trained here) and the settings of a run."""
    if given is None and run.recipe is not None:
        return run.recipe, _training(run.config())
    if given is None and not run.config().data.get("recipe"):
        raise RecipeError(f"{run.path}: its recipe was typed in and cannot be found again; hand it over as recipe=")
    return _built(run.config(), given)


def recipe_from_settings(data: Mapping[str, Any]) -> tuple[Recipe, TrainConfig]:
    """The same from the settings of a run that is elsewhere."""
    if not data.get("recipe"):
        raise RecipeError("the master's recipe was typed in; put it into a file, and start the master with that")
    return _built(Document(dict(data), source="the master"))


def _built(document: Document, given: Any = None) -> tuple[Recipe, TrainConfig]:
    place = str(document.data.get("recipe", ""))
    model = given if isinstance(given, nn.Module) else None
    found = find(place) if given is None or model is not None else type(resolve(given))
    own = {name: value for name, value in document.data.items() if name in found.Config.model_fields}
    config = validate(found.Config, Document(own, document.places, document.source))
    made = found(config) if model is None else Columns(config, model=model)
    return made, _training(document)


def _training(document: Document) -> TrainConfig:
    return validate(TrainConfig, Document(document.data.get("train", {}), {}, document.source))
