"""The best of several trials: the lowest or highest value, or the Pareto front of several objectives."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import optuna

from clew.core.metric_direction import Direction

_FEWEST = 4
"""Complete trials below which importances are not computed."""


def best_indices(values: Sequence[Sequence[float]], directions: Sequence[Direction]) -> list[int]:
    """Return the indices of the best trials.

    Args:
        values: The objectives of every trial, finite.
        directions: `minimize` or `maximize`, one per objective.

    Returns:
        One index for one objective (the first of equal ones), the indices of the Pareto front for several.
    """
    if not values:
        return []
    if len(directions) == 1:
        sign = 1 if directions[0] == "minimize" else -1
        return [min(range(len(values)), key=lambda index: sign * values[index][0])]
    study = optuna.create_study(directions=list(directions), sampler=optuna.samplers.RandomSampler(seed=0))
    study.add_trials([optuna.trial.create_trial(values=list(each)) for each in values])
    return [trial.number for trial in study.best_trials]


def parameter_importances(
    trials: Sequence[optuna.trial.FrozenTrial], directions: Sequence[Direction]
) -> dict[str, float]:
    """Return the share of the differences in the first objective that each parameter explains (PED-ANOVA).

    Args:
        trials: Complete trials of Optuna.
        directions: `minimize` or `maximize`, one per objective.

    Returns:
        Parameter names and shares, the largest first. Empty for fewer than four trials, or if no parameter is common
        to all trials.
    """
    if len(trials) < _FEWEST or len({each.values[0] for each in trials}) < 2:
        return {}
    study = optuna.create_study(directions=list(directions), sampler=optuna.samplers.RandomSampler(seed=0))
    study.add_trials(trials)
    evaluator = optuna.importance.PedAnovaImportanceEvaluator()
    target = None if len(directions) == 1 else lambda trial: trial.values[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return dict(optuna.importance.get_param_importances(study, evaluator=evaluator, target=target))
        except (ValueError, RuntimeError):  # no parameter that all trials share
            return {}
