"""Track finding: hits in, tracks out."""

from clew.recipes.tracking.recipe import Tracking

__all__ = ["Tracking"]
