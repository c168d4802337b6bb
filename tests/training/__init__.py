"""Recipes of these tests, loaded from files like those of users, and the results of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from clew import Recipe, Run
from clew.recipe import find

RECIPES = Path(__file__).parent / "recipes"


def recipe(name: str, **settings: Any) -> Recipe:
    """The recipe in tests/training/recipes/NAME.py with these settings."""
    recipe_class = find(str(RECIPES / f"{name}.py"))
    return recipe_class(recipe_class.Config.model_validate(settings))


def weights(run: Run, name: str = "last") -> dict[str, Tensor]:
    """A run's checkpoint."""
    return load_file(run.checkpoint(name))


def losses(run: Run, stream: str = "rank-0") -> list[dict[str, float]]:
    """The training losses, record by record."""
    return [record["loss"] for record in run.records(stream, "step")]


def validations(run: Run, stream: str = "rank-0") -> list[dict[str, Any]]:
    """The metrics of every validation."""
    return [record["metrics"] for record in run.records(stream, "validation")]


def leaving(samples: int, rest: int) -> int:
    """A batch size that leaves `rest` samples for the last batch."""
    return next(size for size in range(max(5, rest + 1), samples) if samples % size == rest)
