"""The surface people build on: a change here is a change for them, and needs a line in the changelog."""

from __future__ import annotations

import inspect
from typing import Any

import clew
from clew import errors, tally, transforms


def test_public_names_are_pinned() -> None:
    assert sorted(clew.__all__) == [
        "Batch",
        "Client",
        "Dataset",
        "Loss",
        "Ragged",
        "Recipe",
        "Run",
        "Section",
        "Table",
        "__version__",
        "concat",
        "distributed",
        "errors",
        "evaluate",
        "export",
        "figure",
        "predict",
        "prepare",
        "readers",
        "tally",
        "train",
        "transforms",
        "tune",
    ]


def test_every_public_name_can_be_used_and_is_documented() -> None:
    for name in clew.__all__:
        value = getattr(clew, name)
        assert name == "__version__" or inspect.getdoc(value)


def test_verbs_can_be_called_whatever_was_imported_before() -> None:
    import clew.prepare.api
    import clew.train.api

    assert callable(clew.train)
    assert callable(clew.prepare)


def test_recipe_contract_is_pinned() -> None:
    methods = [name for name, item in vars(clew.Recipe).items() if inspect.isfunction(item) and name[0] != "_"]
    assert methods == [
        "read",
        "transforms",
        "prepare",
        "truth",
        "unchanged",
        "generate",
        "model",
        "forward",
        "loss",
        "step",
        "room",
        "optimizers",
        "reconstruct",
        "metrics",
        "look",
        "display",
    ]


def test_errors_share_one_root() -> None:
    kinds: list[Any] = [
        item for item in vars(errors).values() if inspect.isclass(item) and item.__module__ == errors.__name__
    ]
    assert all(issubclass(kind, errors.ClewError) for kind in kinds)
    assert {kind.__name__ for kind in kinds if kind.exit_code == 2} == {
        "UserError",
        "ConfigError",
        "DataError",
        "RecipeError",
        "RunError",
        "ServerError",
    }


def test_every_transform_and_tally_is_exported() -> None:
    assert set(transforms.__all__) >= {"MinMax", "Standard", "Cylindrical", "Cartesian", "DropShort", "DropFakes"}
    assert set(transforms.__all__) >= {"Select", "SelectItems", "Compute"}
    assert {tally.Mean, tally.Ratio, tally.F1, tally.Binned, tally.Roc} <= set(tally.Tally.__subclasses__())
