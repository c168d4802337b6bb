"""Track finding: hits in, tracks out."""

from clew.recipes.tracking.recipe import Tracking
from clew.recipes.tracking.settings import Settings

__all__ = ["Settings", "Tracking"]
