"""What a study cost, and what pruning saved."""

from __future__ import annotations

from dataclasses import dataclass

from clew.tuning.study import Study


@dataclass(frozen=True)
class StudyCost:
    """Seconds of all trials together."""

    seconds: float
    """On the clock."""
    cpu: float
    saved: float
    """On the clock, by pruning: what the steps that were not done would have taken, at the speed of each trial."""


def study_cost(study: Study) -> StudyCost:
    """Added up over the trials that have ended."""
    found = study.outcomes()
    full = max((max(each.reports, default=0) for each in found), default=0)
    if study.config.folds is not None:
        full = study.config.folds.count
    saved = 0.0
    for each in found:
        done = max(each.reports, default=0)
        if each.state == "pruned" and done:
            saved += each.seconds * max(full - done, 0) / done
    return StudyCost(sum(each.seconds for each in found), sum(each.cpu for each in found), saved)
