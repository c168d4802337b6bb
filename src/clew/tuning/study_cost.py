"""The cost of a study, and what pruning saved."""

from __future__ import annotations

from dataclasses import dataclass

from clew.tuning.snapshot import StudySnapshot


@dataclass(frozen=True)
class StudyCost:
    """Seconds of all trials together."""

    seconds: float
    """Elapsed time."""
    cpu: float
    """Processor time."""
    saved: float
    """Elapsed time saved by pruning: the steps that were not done, at the speed of each trial."""


def study_cost(study: StudySnapshot) -> StudyCost:
    """Return the cost of all trials of a study."""
    full = max((max(trial.reports, default=0) for trial in study.trials), default=0)
    if study.config.folds is not None:
        full = study.config.folds.count
    saved = 0.0
    for trial in study.pruned:
        done = max(trial.reports)
        saved += trial.seconds * max(full - done, 0) / done if done else 0.0
    return StudyCost(sum(trial.seconds for trial in study.trials), sum(trial.cpu for trial in study.trials), saved)
