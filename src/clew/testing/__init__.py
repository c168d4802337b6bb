"""Contract suites for pytest: what clew expects of an extension (recipe, reader, transform, store, launcher, strategy,
asynchronous rule), as tests that run on your own class.

Subclass a suite in a test file, and set what it asks for:

    from clew.testing import RecipeContract

    class TestMine(RecipeContract):
        recipe = "my_recipe.py"

The tests of clew run the same suites over everything that clew ships.
"""

from __future__ import annotations

try:
    import pytest
except ModuleNotFoundError:
    raise ModuleNotFoundError("clew.testing needs pytest: pip install 'clew[testing]'", name="pytest") from None

_MODULES = ("launchers", "readers", "recipes", "rules", "stores", "strategies", "tables", "toys", "transforms")
pytest.register_assert_rewrite(*(f"clew.testing.{name}" for name in _MODULES))

from clew.testing.launchers import LauncherContract  # noqa: E402 (assertions must be registered first)
from clew.testing.readers import ReaderContract  # noqa: E402
from clew.testing.recipes import RecipeContract  # noqa: E402
from clew.testing.rules import RuleContract  # noqa: E402
from clew.testing.stores import StoreContract  # noqa: E402
from clew.testing.strategies import StrategyContract  # noqa: E402
from clew.testing.tables import assert_same_table, columns_sharing_offsets  # noqa: E402
from clew.testing.transforms import TransformContract  # noqa: E402

__all__ = [
    "LauncherContract",
    "ReaderContract",
    "RecipeContract",
    "RuleContract",
    "StoreContract",
    "StrategyContract",
    "TransformContract",
    "assert_same_table",
    "columns_sharing_offsets",
]
