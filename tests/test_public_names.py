"""The public names: a change here affects users, and needs a line in the changelog."""

from __future__ import annotations

import ast
import inspect
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import clew
from clew import errors, metrics, rules, strategies, testing, transforms


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
        "TakenSteps",
        "TrainingHooks",
        "TrainingPlan",
        "__version__",
        "artefact",
        "cached_table",
        "concat",
        "distributed",
        "errors",
        "evaluate",
        "export",
        "figure",
        "generate",
        "log",
        "metrics",
        "predict",
        "prepare",
        "readers",
        "rules",
        "runs",
        "strategies",
        "train",
        "transforms",
        "tune",
        "weaver",
    ]


def test_the_names_of_the_contract_suites_are_pinned() -> None:
    assert sorted(testing.__all__) == [
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


def test_the_names_for_authors_of_strategies_and_rules_are_pinned() -> None:
    assert sorted(strategies.__all__) == ["LossSum", "ProcessGroupStrategy", "Strategy", "entry_point", "make_strategy"]
    senders = ["DifferenceSender", "GradientSender", "PushWorkerSide"]
    assert sorted(rules.__all__) == [*senders, "Rule", "WorkerSide", "make_rule", "rule_class"]


def test_public_modules_can_be_imported_from() -> None:
    from clew.readers import read
    from clew.rules import Rule
    from clew.strategies import Strategy
    from clew.transforms import Compute

    assert [read, Rule, Strategy, Compute] == [
        clew.readers.read,
        clew.rules.Rule,
        clew.strategies.Strategy,
        clew.transforms.Compute,
    ]


def test_every_public_name_can_be_used_and_is_documented() -> None:
    for name in clew.__all__:
        value = getattr(clew, name)
        assert name == "__version__" or inspect.getdoc(value)


def test_verbs_can_be_called_whatever_was_imported_before() -> None:
    import clew.data.prepare.api
    import clew.training.api

    assert callable(clew.train)
    assert callable(clew.prepare)


def test_recipe_contract_is_pinned() -> None:
    methods = [name for name, item in vars(clew.Recipe).items() if inspect.isfunction(item) and name[0] != "_"]
    assert methods == [
        "read",
        "transforms",
        "prepare",
        "label_columns",
        "event_columns",
        "passthrough_columns",
        "generate",
        "draw_inputs",
        "check_ranges",
        "generated_writer",
        "model",
        "estimator",
        "estimator_weights",
        "adapt",
        "forward",
        "loss",
        "step",
        "graph_capacity",
        "sample_costs",
        "optimizers",
        "alternates",
        "hooks",
        "validation_metrics",
        "reconstruct",
        "metrics",
        "evaluation_metrics",
        "sample_plots",
        "display",
        "comparison_size",
        "compare",
        "reference_times",
        "benchmark_outputs",
        "benchmark_facts",
    ]


def test_errors_share_one_root() -> None:
    kinds: list[Any] = [
        item for item in vars(errors).values() if inspect.isclass(item) and item.__module__ == errors.__name__
    ]
    assert all(issubclass(kind, errors.ClewError) for kind in kinds)
    assert {kind.__name__ for kind in kinds if kind.exit_code == 2} == {
        "UserError",
        "ConfigError",
        "MissingMetricError",
        "DataError",
        "RecipeError",
        "RunError",
        "ServerError",
    }


def test_every_transform_and_metric_is_exported() -> None:
    assert set(transforms.__all__) >= {"MinMax", "Standard", "Cylindrical", "Cartesian", "DropShort", "DropFakes"}
    assert set(transforms.__all__) >= {"Select", "SelectItems", "Compute"}
    assert {metrics.Mean, metrics.Ratio, metrics.F1, metrics.Binned, metrics.Roc} <= set(
        metrics.Metric.__subclasses__()
    )


@pytest.mark.slow
def test_no_public_class_name_is_defined_twice() -> None:
    files = Path(clew.__file__).parent.rglob("*.py")
    nodes = [node for file in files for node in ast.walk(ast.parse(file.read_text()))]
    counts = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef) and not node.name.startswith("_"))
    assert not {name for name, count in counts.items() if count > 1}
