"""Liquid-argon time projection chambers: which particle made an image of wires and ticks."""

from clew.recipes.lartpc.recipe import LArTPC
from clew.recipes.lartpc.settings import Settings

__all__ = ["LArTPC", "Settings"]
