"""Trials that are kept elsewhere than in a study's folder: what pages say of them."""

from __future__ import annotations

from dataclasses import dataclass

import optuna

from clew.tuning import space
from clew.tuning.config import TuneConfig
from clew.tuning.study import TrialSummary, best_of, importances_of

_FEW = 4
"""Complete trials below which nothing can be said of parameters."""


@dataclass(frozen=True)
class Elsewhere:
    """A study as outcomes alone; see `clew.tuning.report.Seen`."""

    config: TuneConfig
    outcomes: list[TrialSummary]

    def best(self) -> list[TrialSummary]:
        """The best trial, or the Pareto front."""
        return best_of(self.config, self.outcomes)

    def importances(self) -> dict[str, float]:
        """How much of the objective's differences each parameter explains, the largest first; none for a few trials."""
        done = [each for each in self.outcomes if each.state == "complete" and each.settings]
        if len(done) < _FEW or len({each.values[0] for each in done}) < 2:
            return {}
        directions = [each.direction for each in self.config.objectives]
        study = optuna.create_study(directions=directions, sampler=optuna.samplers.RandomSampler(seed=0))
        for each in done:
            labels = {key: self.config.space[key].label(value) for key, value in each.settings.items()}
            study.enqueue_trial(labels)
            trial = study.ask()
            space.suggest_values(trial, self.config.space)
            study.tell(trial, list(each.values))
        return importances_of(study)
