"""Recipes from weaver: the classes that a recipe of `clew init --from-weaver` uses."""

from clew.models.weaver.config import DataConfig
from clew.models.weaver.recipe import WeaverConfig, WeaverRecipe

__all__ = ["DataConfig", "WeaverConfig", "WeaverRecipe"]
