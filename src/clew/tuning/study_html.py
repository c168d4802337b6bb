"""A study as HTML for notebooks: a curve of the best value so far, and a table of the best trials."""

from __future__ import annotations

import contextlib
import importlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from clew.core.html_table import html_table
from clew.runs.live_view import in_notebook
from clew.runs.svg_curves import svg_curves
from clew.tuning.snapshot import StudySnapshot, TrialSummary

if TYPE_CHECKING:
    from clew.tuning.study import Study

_SHOWN_TRIALS = 8
"""Number of trials in the table."""
_UPDATE_SECONDS = 1.0


def study_html(name: str, study: StudySnapshot) -> str:
    """Return a study as HTML.

    Args:
        name: Title of the study.
        study: Its settings and trials.
    """
    counts = Counter(trial.state for trial in study.trials)
    title = f"Study {name}: " + ", ".join(f"{count} {state}" for state, count in counts.items())
    objectives = [objective.metric for objective in study.config.objectives]
    keys = list(study.config.space)
    rows = [_row(trial, keys) for trial in _sorted_trials(study)[:_SHOWN_TRIALS]]
    header = ("trial", *objectives, *keys, "seconds")
    return html_table(title, rows, header=header, above=svg_curves(objectives[0], _progress(study), x="trial"))


def _sorted_trials(study: StudySnapshot) -> list[TrialSummary]:
    """Return complete trials, the best first."""
    sign = 1 if study.directions[0] == "minimize" else -1
    return sorted(study.complete, key=lambda trial: sign * trial.values[0])


def _row(trial: TrialSummary, keys: list[str]) -> list[str]:
    settings = [_text(trial.settings.get(key, "")) for key in keys]
    return [str(trial.number), *(f"{value:.5g}" for value in trial.values), *settings, f"{trial.seconds:.1f}"]


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _progress(study: StudySnapshot) -> dict[str, list[tuple[float, float]]]:
    """Return the first objective of every trial, and the best so far."""
    trials = sorted(study.complete, key=lambda trial: trial.number)
    better = min if study.directions[0] == "minimize" else max
    best: list[tuple[float, float]] = []
    for trial in trials:
        value = trial.values[0] if not best else better(best[-1][1], trial.values[0])
        best.append((float(trial.number), value))
    return {"best": best, "trial": [(float(trial.number), trial.values[0]) for trial in trials]}


@contextlib.contextmanager
def shown_study(study: Study, show: Callable[[Study], None] | None) -> Iterator[Callable[[Study], None]]:
    """Yield the function that shows a study while it runs.

    Args:
        study: The study.
        show: The function of the user. None: in a notebook one that shows the study below the cell, else nothing.
    """
    if show is not None or not in_notebook():
        yield show or (lambda study: None)
        return
    view = _NotebookStudyView()
    try:
        yield view
    finally:
        view.show(study)


class _NotebookStudyView:
    """Shows a study below a cell of a notebook while it runs. Call it with the study."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._shown = 0.0

    def __call__(self, study: Study) -> None:
        """Show the study, if it was not shown within the last second."""
        if time.monotonic() - self._shown > _UPDATE_SECONDS:
            self.show(study)

    def show(self, study: Study) -> None:
        """Show the study now."""
        ipython: Any = importlib.import_module("IPython.display")
        html, self._shown = ipython.HTML(study._repr_html_()), time.monotonic()
        if self._handle is None:
            self._handle = ipython.display(html, display_id=True)
        else:
            self._handle.update(html)
