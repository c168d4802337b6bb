"""Particle flow: the towers and tracks of an event in, its particles out."""

from clew.recipes.particleflow.recipe import ParticleFlow
from clew.recipes.particleflow.settings import Settings

__all__ = ["ParticleFlow", "Settings"]
