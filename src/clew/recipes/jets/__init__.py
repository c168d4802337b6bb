"""Jet tagging: which kind of particle a jet came from, told by its constituents, its image or a few numbers."""

from clew.recipes.jets.recipe import Jets
from clew.recipes.jets.recipe_features import JetFeatures
from clew.recipes.jets.recipe_images import JetImages
from clew.recipes.jets.settings import FeatureSettings, ImageSettings, SequenceSettings

__all__ = ["FeatureSettings", "ImageSettings", "JetFeatures", "JetImages", "Jets", "SequenceSettings"]
