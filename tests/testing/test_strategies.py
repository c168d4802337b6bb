"""The suites of strategies and rules, on extensions of another package: each fault fails the test that is about it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_docs import ROOT, _blocks
from tests.testing import failed_tests

pytestmark = pytest.mark.timeout(400)

MODULE = '''
from clew import rules
from clew.training.strategies.allreduce import AllReduce


class Selfish(AllReduce):
    """Ranks do not add their gradients."""
    def backward(self, losses, parameters, *, last):
        sums = super(AllReduce, self).backward(losses, parameters, last=last)
        return sums


class Forgetful(AllReduce):
    """Checkpoints lose the state of the optimisers."""
    def load_optimizer_state(self, optimizer, state):
        pass


class Lazy(rules.Rule):
    """The master ignores what workers send."""
    def worker_side(self, model, allocate):
        return rules.DifferenceSender(model, self.config, allocate)

    def apply_update(self, weights, update, fields, step):
        pass


class Double(Lazy):
    """The master applies every update twice."""
    def apply_update(self, weights, update, fields, step):
        weights.sub_(update, alpha=2)
'''
TESTS = """
from clew.testing import RuleContract, StrategyContract


class TestSelfish(StrategyContract):
    strategy = "selfish"


class TestForgetful(StrategyContract):
    strategy = "forgetful"


class TestLazy(RuleContract):
    rule = "lazy"


class TestDouble(RuleContract):
    rule, one_worker_is_single = "double", True
"""
SAME, RESUMES = "test_ranks_train_as_one_process", "test_a_stopped_run_resumes_to_the_bit"
LEARNS = "test_one_process_learns_the_regression"
ONCE, SINGLE = "test_every_sample_is_used_once_per_epoch", "test_one_worker_takes_the_steps_of_a_single_process"


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, entry_points: str) -> None:
    """Make a folder look like an installed package with entry points, in this process's children."""
    metadata = folder / "other-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(entry_points)
    monkeypatch.setenv("PYTHONPATH", str(folder))


@pytest.mark.long
def test_each_fault_fails_its_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other.py").write_text(MODULE)
    install(
        tmp_path,
        monkeypatch,
        "[clew.strategies]\nselfish = other:Selfish\nforgetful = other:Forgetful\n"
        "[clew.rules]\nlazy = other:Lazy\ndouble = other:Double\n",
    )
    chosen = {
        "TestSelfish": [f"{SAME}[adversarial]"],
        "TestForgetful": [f"{SAME}[adversarial]", f"{RESUMES}[adversarial]"],
        "TestLazy": [f"{ONCE}[adversarial]", LEARNS],
        "TestDouble": [f"{SINGLE}[adversarial]"],
    }
    failed = failed_tests(tmp_path, TESTS, chosen)
    assert failed == {
        "TestSelfish": {SAME},
        "TestForgetful": {RESUMES},
        "TestLazy": {ONCE, LEARNS},
        "TestDouble": {SINGLE},
    }


@pytest.mark.long
def test_the_example_of_a_rule_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = ROOT / "docs" / "howto" / "testing.md"
    *_, rule, test, _ = _blocks(page, "python")
    (entry_point,) = _blocks(page, "toml")
    (tmp_path / "halved_rule.py").write_text(rule)
    (tmp_path / "test_halved_rule.py").write_text(test)
    install(
        tmp_path, monkeypatch, entry_point.replace('project.entry-points."clew.rules"', "clew.rules").replace('"', "")
    )
    chosen = [f"test_halved_rule.py::TestHalved::{name}" for name in (ONCE, LEARNS)]
    words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *chosen]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0 and "3 passed" in done.stdout, done.stdout


def test_names_and_settings_of_other_packages_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other.py").write_text(MODULE)
    points = (
        "[clew.strategies]\nselfish = other:Selfish\nwrong = other:Lazy\n[clew.rules]\nlazy = other:Lazy\ngone = no:R\n"
    )
    install(tmp_path, monkeypatch, points)
    script = """
from clew.core.config import Document, to_data, validate
from clew.training.config import TrainConfig
from clew.errors import ConfigError

def check(**settings):
    try:
        config = validate(TrainConfig, Document(settings))
        print(validate(TrainConfig, Document(to_data(config))).strategy, config.traits.asynchronous)
    except ConfigError as error:
        print(error)

check(strategy="selfish")
check(strategy="lazy")
check(strategy="lazzy")
check(strategy="gone")
check(strategy="lazy", asynchronous={"parameters": {"share": 2}})
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    selfish, lazy, unknown, gone, parameters = done.stdout.splitlines()
    assert (selfish, lazy, done.stderr) == ("selfish False", "lazy True", "")
    assert "strategy: input should be 'single'" in unknown
    assert gone == "rule 'gone' (no:R) cannot be loaded: No module named 'no'"
    assert parameters.startswith("train.asynchronous.parameters: unknown key 'share'")
