"""Synchronous strategies, for authors of new ones; the code is in `clew.training.strategies`."""

from clew.training.strategies import *  # noqa: F403
from clew.training.strategies import __all__ as __all__
