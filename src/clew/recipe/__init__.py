"""Recipes: the contract of a physics task (`contract`), and how a recipe is found by its name or file (`lookup`)."""

from clew.recipe.contract import Loss, Recipe
from clew.recipe.lookup import ENTRY_POINTS, TYPED_IN, available, find, load_code, resolve, shipped

__all__ = ["ENTRY_POINTS", "TYPED_IN", "Loss", "Recipe", "available", "find", "load_code", "resolve", "shipped"]
