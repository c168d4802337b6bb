"""A study as plain data: its settings and trials, wherever they are stored. Pages are made from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from clew.core.metric_direction import Direction
from clew.tuning import space
from clew.tuning.best_trials import best_indices, parameter_importances
from clew.tuning.config import TuneConfig
from clew.tuning.folder import run_name

State = Literal["waiting", "running", "complete", "pruned", "failed"]
END_STATES = ("complete", "pruned", "failed")


@dataclass(frozen=True)
class TrialSummary:
    """A trial in its present state."""

    number: int
    state: State
    settings: dict[str, Any]
    """Values by key of the settings."""
    values: tuple[float, ...] = ()
    """The objectives of a complete trial."""
    reports: dict[int, float] = field(default_factory=dict)
    """The first objective by step (epoch or fold, counted from 1)."""
    reason: str = ""
    """Why the trial failed or was pruned."""
    spread: tuple[float, ...] = ()
    """Standard deviation of the objectives over folds."""
    seconds: float = 0.0
    """Elapsed time."""
    cpu: float = 0.0
    """Processor time of all processes, in seconds."""
    attempts: int = 1
    started: float = 0.0
    """Time of the start, in seconds since 1970; 0 if unknown."""

    @property
    def name(self) -> str:
        """The name of the trial's run."""
        return run_name(self.number)

    @property
    def last_report(self) -> float:
        """The first objective after the last reported step."""
        return self.reports[max(self.reports)]


@dataclass(frozen=True)
class StudySnapshot:
    """The settings of a study and all its trials at one moment."""

    config: TuneConfig
    trials: list[TrialSummary]

    @property
    def complete(self) -> list[TrialSummary]:
        """The complete trials that have values."""
        return [trial for trial in self.trials if trial.state == "complete" and trial.values]

    @property
    def pruned(self) -> list[TrialSummary]:
        """The pruned trials that reported at least once."""
        return [trial for trial in self.trials if trial.state == "pruned" and trial.reports]

    @property
    def directions(self) -> list[Direction]:
        """`minimize` or `maximize`, one per objective."""
        return [objective.goal for objective in self.config.objectives]

    def best(self) -> list[TrialSummary]:
        """Return the best trial, or the Pareto front for several objectives; empty if no trial is complete."""
        complete = self.complete
        return [complete[index] for index in best_indices([trial.values for trial in complete], self.directions)]

    def importances(self) -> dict[str, float]:
        """Return the share of the objective's differences that each parameter explains, the largest first."""
        trials = [
            space.frozen_trial(self.config.space, trial.settings, trial.values)
            for trial in self.complete
            if trial.settings
        ]
        return parameter_importances([trial for trial in trials if trial is not None], self.directions)
