"""Recipes: the contract of a physics task (`contract`), hooks of its training (`hooks`), finding recipes (`lookup`)."""

from clew.recipe.contract import Loss, Recipe
from clew.recipe.hooks import TakenSteps, TrainingHooks, TrainingPlan
from clew.recipe.lookup import ENTRY_POINTS, TYPED_IN, available, find, load_code, resolve, shipped

__all__ = [
    "ENTRY_POINTS",
    "TYPED_IN",
    "Loss",
    "Recipe",
    "TakenSteps",
    "TrainingHooks",
    "TrainingPlan",
    "available",
    "find",
    "load_code",
    "resolve",
    "shipped",
]
