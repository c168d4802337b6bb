"""A study: ask for trials, report on them, tell how they ended. Everything that tunes, inside or outside, calls this.

Asking and changing hands happen under a lock in the study's folder, so any number of processes may share a study:
none asks for more than was wanted, and whatever runs has a file in `handed` that says who has it.
"""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.trial import FrozenTrial, TrialState

from clew.core.file_lock import FileLock
from clew.core.files import write_text
from clew.errors import ConfigError, RunError
from clew.tuning import optuna_setup, space
from clew.tuning.config import TuneConfig
from clew.tuning.folder import StudyFolder, run_name

State = Literal["waiting", "running", "complete", "pruned", "failed"]
ENDS = ("complete", "pruned", "failed")
_STATES: dict[TrialState, State] = {
    TrialState.WAITING: "waiting",
    TrialState.RUNNING: "running",
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
}
EXTERNAL = "outside"
"""How the names of owners begin who are no coordinators."""
_FACTS = "clew"
"""The one attribute of a trial that is ours."""


@dataclass(frozen=True)
class ProposedTrial:
    """A trial to be done."""

    number: int
    values: dict[str, Any]
    """By key of the settings."""


@dataclass(frozen=True)
class TrialSummary:
    """A trial as it stands."""

    number: int
    state: State
    settings: dict[str, Any]
    values: tuple[float, ...] = ()
    """Of the objectives, where it is complete."""
    reports: dict[int, float] = field(default_factory=dict)
    """The first objective, by step (epoch or fold, counted from 1)."""
    reason: str = ""
    """Why it failed or was pruned."""
    spread: tuple[float, ...] = ()
    """Standard deviation over folds."""
    seconds: float = 0.0
    cpu: float = 0.0
    """Processor seconds of all its processes."""
    attempts: int = 1
    begun: float = 0.0
    """Seconds since 1970."""

    @property
    def name(self) -> str:
        """What its run is called."""
        return run_name(self.number)


class Study:
    """Trials of Optuna's, in a folder. Cheap to keep, dear to open: keep one for as long as there is something to ask.

    Not for several threads.
    """

    def __init__(self, folder: StudyFolder, config: TuneConfig) -> None:
        self.folder, self.config = folder, config
        self._storage = optuna.storages.get_storage(optuna_setup.create_storage(config.storage, folder.path))
        train = folder.document().data.get("train", {})
        steps = config.folds.count if config.folds else int(train.get("epochs", 1))
        self._optuna = optuna.create_study(
            study_name=folder.name,
            storage=self._storage,
            sampler=optuna_setup.create_sampler(config),
            pruner=optuna_setup.create_pruner(config.pruner, steps),
            directions=[each.direction for each in config.objectives],
            load_if_exists=True,
        )
        weakref.finalize(self, _let_go, self._storage)
        self._lock = FileLock(folder.ask_lock)
        self._asked = False

    @classmethod
    def create(cls, path: Path | str, data: Mapping[str, Any], config: TuneConfig) -> Study:
        """A new one in a folder of its own; `data` is the whole document, `tune` included.

        Raises:
            RunError: the folder is taken.
            ConfigError: sampler, pruner or storage cannot be had.
        """
        optuna_setup.create_sampler(config), optuna_setup.create_pruner(config.pruner, 1)
        folder = StudyFolder.create(Path(path), data)
        try:
            return cls(folder, config)
        except ConfigError:
            shutil.rmtree(folder.path)
            with contextlib.suppress(OSError):
                folder.path.parent.rmdir()  # if it was made for this study
            raise

    @classmethod
    def open(cls, path: Path | str) -> Study:
        """One that was created before."""
        folder = StudyFolder.open(path)
        return cls(folder, folder.config())

    @property
    def wanted(self) -> int:
        """How many trials there will be."""
        if self.config.sampler.name != "grid":
            return self.config.trials
        return min(self.config.trials, math.prod(len(each) for each in space.grid_values(self.config.space).values()))

    def ask(self, owner: str, *, within: float | None = None) -> ProposedTrial | None:
        """The next trial, or None when all that were wanted have been asked for.

        `owner` is whose it is now (see `take_over`). With `within`, in seconds, it goes to the next who asks that way
        if it was not told by then.
        """
        with self._lock.held():
            if within is not None:
                late = next((n for n, record in self._handed() if record.get("until", math.inf) < time.time()), None)
                if late is not None:
                    return self._hand_out(late, owner, within)
            there = len(self._frozen())
            if there >= self.wanted:
                return None
            if there and not self._asked:
                self._optuna.sampler = optuna_setup.create_sampler(self.config, after=there)
            self._asked = True
            trial = self._optuna.ask()
            values = space.suggest_values(trial, self.config.space)
            self._write(trial.number, owner, within)
            return ProposedTrial(trial.number, values)

    def take_over(self, owner: str, alive: Callable[[str], bool]) -> list[ProposedTrial]:
        """Trials that run and whose owner is not alive, or was killed before it wrote its name down: ours from now."""
        with self._lock.held():
            owners = {number: record["owner"] for number, record in self._handed()}
            running = [each.number for each in self._frozen() if each.state == TrialState.RUNNING]
            return [self._hand_out(n, owner, None) for n in running if n not in owners or not alive(owners[n])]

    def owner(self, number: int) -> str:
        """Whose a trial is; '' where it is nobody's."""
        try:
            return str(json.loads(self._record(number).read_text())["owner"])
        except FileNotFoundError:
            return ""

    def all_outside(self) -> bool:
        """Whether every trial that runs was asked for from outside."""
        return all(record["owner"].startswith(EXTERNAL) for _, record in self._handed())

    def report(self, number: int, step: int, value: float) -> bool:
        """A first look at the first objective after a step (counted from 1); whether the trial should be pruned.

        With several objectives none is: no trial would be the worse one. A step that was reported before keeps its
        value.

        Raises:
            RunError: there is no such trial, or it has ended.
        """
        trial = self._running(number)
        several = len(self.config.objectives) > 1
        if step not in trial.intermediate_values:
            self._storage.set_trial_intermediate_value(trial._trial_id, step, float(value))
            if several or self.config.pruner.name == "none":
                return False
            trial = self._storage.get_trial(trial._trial_id)
        if several:
            return False
        return bool(self._optuna.pruner.prune(self._optuna, trial))

    def tell(
        self,
        number: int,
        values: float | Sequence[float] | None = None,
        *,
        state: State = "complete",
        reason: str = "",
        **facts: Any,
    ) -> bool:
        """How a trial ended; False if that was told before, and nothing changed.

        Values that are not finite make it a failed one. `facts` are those of `TrialSummary`, as
        seconds, cpu, spread, attempts and begun.

        Raises:
            RunError: there is no such trial, or the number of values is not that of objectives.
        """
        given = () if values is None else (float(values),) if isinstance(values, (int, float)) else tuple(values)
        if state == "complete" and len(given) != len(self.config.objectives):
            raise RunError(f"trial {number}: {len(given)} values for {len(self.config.objectives)} objectives")
        if not all(map(math.isfinite, given)):
            state, reason = "failed", reason or f"its objective is {', '.join(map(str, given))}"
        with self._lock.held():
            trial = self._trial(number)
            if trial.state.is_finished():
                self._record(number).unlink(missing_ok=True)
                return False
            told = {"reason": reason, **facts}
            self._storage.set_trial_user_attr(trial._trial_id, _FACTS, {k: v for k, v in told.items() if v})
            end = {kept: each for each, kept in _STATES.items()}[state]
            self._optuna.tell(number, list(given) if state == "complete" else None, state=end)
            self._record(number).unlink(missing_ok=True)
        return True

    def check_lease(self, number: int, lease: str) -> None:
        """That a trial is still in the hands it was given to, from outside.

        Raises:
            RunError: it went to another.
        """
        if self.owner(number) != lease:
            raise RunError(f"trial {number}: the lease {lease} is gone; another has it, or it has ended")

    def outcomes(self) -> list[TrialSummary]:
        """Every trial, in order of number."""
        return [self._outcome(each) for each in self._frozen()]

    def outcome(self, number: int) -> TrialSummary:
        """One trial.

        Raises:
            RunError: there is none.
        """
        return self._outcome(self._trial(number))

    def count(self) -> dict[State, int]:
        """How many trials there are in each state, and altogether as `waiting` those not asked for yet."""
        found: dict[State, int] = dict.fromkeys(_STATES.values(), 0)
        for each in self._frozen():
            found[_STATES[each.state]] += 1
        found["waiting"] = max(self.wanted - sum(found.values()), 0)
        return found

    def best(self) -> list[TrialSummary]:
        """The best trial, or the Pareto front where there are several objectives; none before one is complete."""
        return best_of(self.config, self.outcomes())

    def importances(self) -> dict[str, float]:
        """How much of the objective's differences each parameter explains, the largest first; none for a few trials."""
        done = [each for each in self._frozen() if each.state == TrialState.COMPLETE]
        if len(done) < 4 or len({each.values[0] for each in done if each.values}) < 2:
            return {}
        return importances_of(self._optuna)

    def _outcome(self, trial: FrozenTrial) -> TrialSummary:
        facts = trial.user_attrs.get(_FACTS, {})
        begun = trial.datetime_start.timestamp() if trial.datetime_start else 0.0
        return TrialSummary(
            number=trial.number,
            state=_STATES[trial.state],
            settings=space.settings_from_params(trial.params, self.config.space),
            values=tuple(trial.values) if trial.state == TrialState.COMPLETE and trial.values else (),
            reports=dict(trial.intermediate_values),
            **{"begun": begun, **facts, "spread": tuple(facts.get("spread", ()))},
        )

    def _frozen(self) -> list[FrozenTrial]:
        return self._optuna.get_trials(deepcopy=False)

    def _trial(self, number: int) -> FrozenTrial:
        trials = self._frozen()
        if not 0 <= number < len(trials):
            raise RunError(f"{self.folder.path}: no trial {number}; {len(trials)} were asked for, counted from 0")
        return trials[number]

    def _running(self, number: int) -> FrozenTrial:
        trial = self._trial(number)
        if trial.state.is_finished():
            raise RunError(f"trial {number} has ended: {_STATES[trial.state]}")
        return trial

    def _hand_out(self, number: int, owner: str, within: float | None) -> ProposedTrial:
        """Give a trial to another. Parameters that its first owner did not live to ask for are asked for now."""
        trial = self._trial(number)
        self._write(number, owner, within)
        if any(key not in trial.params for key in self.config.space):
            return ProposedTrial(
                number, space.suggest_values(optuna.trial.Trial(self._optuna, trial._trial_id), self.config.space)
            )
        return ProposedTrial(number, space.settings_from_params(trial.params, self.config.space))

    def _record(self, number: int) -> Path:
        return self.folder.handed / f"{number}.json"

    def _write(self, number: int, owner: str, within: float | None) -> None:
        until = {} if within is None else {"until": time.time() + within}
        write_text(self._record(number), json.dumps({"owner": owner, **until}))

    def _handed(self) -> Iterator[tuple[int, dict[str, Any]]]:
        for path in sorted(self.folder.handed.glob("*.json"), key=lambda each: int(each.stem)):
            yield int(path.stem), json.loads(path.read_text())


def best_of(config: TuneConfig, outcomes: Sequence[TrialSummary]) -> list[TrialSummary]:
    """The best of these, or their Pareto front."""
    done = [each for each in outcomes if each.state == "complete"]
    signs = [1 if each.direction == "minimize" else -1 for each in config.objectives]
    if len(signs) == 1:
        return sorted(done, key=lambda each: signs[0] * each.values[0])[:1]
    scores = {each.number: [s * v for s, v in zip(signs, each.values, strict=True)] for each in done}
    return [each for each in done if not any(_beats(other, scores[each.number]) for other in scores.values())]


def importances_of(study: optuna.Study) -> dict[str, float]:
    """Of the parameters of a study of Optuna's with a few complete trials, for its first objective."""
    evaluator = optuna.importance.PedAnovaImportanceEvaluator()
    target = None if len(study.directions) == 1 else lambda each: each.values[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return dict(optuna.importance.get_param_importances(study, evaluator=evaluator, target=target))
        except (ValueError, RuntimeError):  # no parameter that all trials share
            return {}


def _beats(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether one is nowhere worse and somewhere better."""
    return all(a <= b for a, b in zip(one, other, strict=True)) and list(one) != list(other)


def _let_go(storage: Any) -> None:
    """Close connections to a database."""
    engine = getattr(getattr(storage, "_backend", storage), "engine", None)
    if engine is not None:
        engine.dispose()
