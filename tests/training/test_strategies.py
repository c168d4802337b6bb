"""The contract suites of `clew.testing` over every strategy and every asynchronous rule that clew ships."""

from __future__ import annotations

import pytest

from clew.testing import RuleContract, StrategyContract
from clew.training.strategy_table import STRATEGIES

pytestmark = pytest.mark.timeout(240)


class TestAllReduce(StrategyContract):
    strategy = "allreduce"


class TestSharded(StrategyContract):
    strategy = "sharded"


class TestPipeline(StrategyContract):
    strategy, alternates = "pipeline", False


class TestPipelineAtSplitPoints(TestPipeline):
    model, settings = "branches", {"split_points": ["middle", "head"]}


class TestPipelineAtSplitPointsOnThreeRanks(TestPipelineAtSplitPoints):
    workers = 3


class TestDownpour(RuleContract):
    rule, one_worker_is_single = "downpour", True


class TestBackup(RuleContract):
    rule, one_worker_is_single = "backup", True


class TestEasgd(RuleContract):
    rule = "easgd"


class TestGem(RuleContract):
    rule = "gem"


class TestDiLoCo(RuleContract):
    rule = "diloco"
    settings = {"asynchronous": {"sync_every": 8}}  # with fewer steps the outer momentum overshoots


def test_every_strategy_of_clew_is_tested() -> None:
    suites = [suite for kind in (StrategyContract, RuleContract) for suite in kind.__subclasses__()]
    names = {getattr(suite, "strategy", None) or getattr(suite, "rule", None) for suite in suites}
    assert names >= STRATEGIES.keys() - {"single"}
