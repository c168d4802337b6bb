"""What a study cost, and what pruning saved."""

from __future__ import annotations

from typing import Any

import pytest

from clew.tuning.config import TuneConfig
from clew.tuning.snapshot import State, StudySnapshot, TrialSummary
from clew.tuning.study_cost import StudyCost, study_cost


def trial(number: int, state: State, seconds: float, steps: int = 0) -> TrialSummary:
    reports = dict.fromkeys(range(1, steps + 1), 0.5)
    return TrialSummary(number, state, {}, reports=reports, seconds=seconds, cpu=2 * seconds)


def cost(*trials: TrialSummary, **config: Any) -> StudyCost:
    return study_cost(StudySnapshot(TuneConfig.model_validate(config), list(trials)))


def test_pruning_saves_the_steps_that_were_not_done_at_the_speed_of_the_trial() -> None:
    spent = cost(
        trial(0, "complete", 100, 10),
        trial(1, "pruned", 8, 4),
        trial(2, "pruned", 30, 9),
        trial(3, "failed", 5, 1),
        trial(4, "pruned", 3),
        trial(5, "running", 1, 2),
    )
    assert (spent.seconds, spent.cpu) == (147, 294)
    assert spent.saved == pytest.approx(8 / 4 * 6 + 30 / 9 * 1)


def test_with_folds_a_step_is_a_fold() -> None:
    trials = trial(0, "complete", 50, 5), trial(1, "pruned", 10, 2), trial(2, "pruned", 9, 6)
    assert cost(*trials, folds=5).saved == pytest.approx(10 / 2 * 3)


def test_a_study_without_trials_cost_nothing() -> None:
    assert cost() == StudyCost(0, 0, 0)
