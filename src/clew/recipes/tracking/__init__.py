"""Track finding: hits in, tracks out."""

from clew.recipes.tracking.recipe import Tracking
from clew.recipes.tracking.recipe_hits import HitGraph
from clew.recipes.tracking.recipe_sequences import TrackNet
from clew.recipes.tracking.settings import HitSettings, SequenceSettings, Settings

__all__ = ["HitGraph", "HitSettings", "SequenceSettings", "Settings", "TrackNet", "Tracking"]
