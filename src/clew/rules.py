"""Asynchronous rules, for authors of new ones; the code is in `clew.training.asynchronous.rules`."""

from clew.training.asynchronous.rules import *  # noqa: F403
from clew.training.asynchronous.rules import __all__ as __all__
