"""Transforms of tables; the code is in `clew.data.transforms`."""

from clew.data.transforms import *  # noqa: F403
from clew.data.transforms import __all__ as __all__
