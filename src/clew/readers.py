"""Readers of event files; the code is in `clew.data.readers`."""

from clew.data.readers import *  # noqa: F403
from clew.data.readers import __all__ as __all__
