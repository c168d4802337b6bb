"""A study: ask for trials, report intermediate values, tell how trials ended.

Every coordinator and every external program uses this class. Asking and taking over happen under a lock in the study's
folder, so that any number of processes can share a study: together they ask for no more trials than requested, and
every running trial has a file in `owners/` that names its owner.
"""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from clew.core.file_lock import FileLock
from clew.core.files import write_text
from clew.errors import ConfigError, RunError
from clew.tuning import optuna_setup, space
from clew.tuning.config import TuneConfig
from clew.tuning.folder import StudyFolder
from clew.tuning.proposed_trial import EXTERNAL, ProposedTrial
from clew.tuning.snapshot import State, StudySnapshot, TrialSummary

_STATES: dict[TrialState, State] = {
    TrialState.WAITING: "waiting",
    TrialState.RUNNING: "running",
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
}
_FACTS = "clew"
"""The user attribute of an Optuna trial in which clew stores its facts."""


class Study:
    """A study of Optuna in a folder. Opening one is expensive: keep it open between calls.

    Do not use one object from several threads.

    Example:
        >>> import clew, tempfile
        >>> config = clew.TuneConfig(space={"x": {"uniform": [0, 1]}}, trials=1)
        >>> study = clew.Study.create(tempfile.mkdtemp() + "/study", {"tune": config.model_dump()}, config)
        >>> trial = study.ask("external-me")
        >>> study.tell(trial.number, trial.values["x"] ** 2)
        True
        >>> [best.state for best in study.best()]
        ['complete']
    """

    def __init__(self, folder: StudyFolder, config: TuneConfig) -> None:
        self.folder, self.config = folder, config
        self._storage = optuna.storages.get_storage(optuna_setup.create_storage(config.storage, folder.path))
        train = folder.document().data.get("train", {})
        steps = config.folds.count if config.folds else int(train.get("epochs", 1))
        self.optuna_study = optuna.create_study(
            study_name=folder.name,
            storage=self._storage,
            sampler=optuna_setup.create_sampler(config),
            pruner=optuna_setup.create_pruner(config.pruner, steps),
            directions=[objective.goal for objective in config.objectives],
            load_if_exists=True,
        )
        weakref.finalize(self, _close_connections, self._storage)
        self._lock = FileLock(folder.ask_lock)
        self._has_asked = False

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {state}" for state, count in self.count().items() if count)
        return f"Study({self.folder.path}: {counts or 'no trials'})"

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        from clew.tuning.study_html import study_html

        return study_html(str(self.folder.path), self.snapshot())

    @classmethod
    def create(cls, path: Path | str, data: Mapping[str, Any], config: TuneConfig) -> Study:
        """Create a study in a new folder.

        Args:
            path: The folder. It must not exist.
            data: All settings, including the section `tune`.
            config: The section `tune`.

        Raises:
            RunError: The folder exists.
            ConfigError: The sampler, the pruner or the storage is not available.
        """
        optuna_setup.create_sampler(config), optuna_setup.create_pruner(config.pruner, 1)
        folder = StudyFolder.create(Path(path), data)
        try:
            return cls(folder, config)
        except ConfigError:
            shutil.rmtree(folder.path)
            with contextlib.suppress(OSError):
                folder.path.parent.rmdir()  # if it was created for this study
            raise

    @classmethod
    def open(cls, path: Path | str) -> Study:
        """Open a study that was created before.

        Raises:
            RunError: The folder holds no study.
        """
        folder = StudyFolder.open(path)
        return cls(folder, folder.config())

    @property
    def total_trials(self) -> int:
        """The number of trials that the study runs."""
        return space.planned_trials(self.config)

    def ask(self, owner: str, *, within: float | None = None) -> ProposedTrial | None:
        """Return the next trial, or None if all trials have been asked for.

        Args:
            owner: Name of the new owner of the trial (see `take_over`).
            within: Time limit in seconds. If the trial has not ended by then, the next caller that also passes
                `within` gets it.
        """
        with self._lock.held():
            if within is not None:
                overdue = (n for n, record in self._owners() if record.get("until", math.inf) < time.time())
                number = next(overdue, None)
                if number is not None:
                    return self._assign(number, owner, within)
            count = len(self._frozen_trials())
            if count >= self.total_trials:
                return None
            if count and not self._has_asked:
                self.optuna_study.sampler = optuna_setup.create_sampler(self.config, after=count)
            self._has_asked = True
            trial = self.optuna_study.ask()
            values = space.suggest_values(trial, self.config.space)
            self._write_owner(trial.number, owner, within)
            return ProposedTrial(trial.number, values)

    def take_over(self, owner: str, alive: Callable[[str], bool]) -> list[ProposedTrial]:
        """Assign running trials whose owner is not alive, or not recorded, to a new owner.

        Args:
            owner: Name of the new owner.
            alive: Returns whether the owner of a given name is alive.

        Returns:
            The trials that were assigned.
        """
        with self._lock.held():
            for path in self.folder.owners.glob(".*.tmp"):  # of a killed process: others write only with the lock
                path.unlink(missing_ok=True)
            owners = {number: record["owner"] for number, record in self._owners()}
            running = [trial.number for trial in self._frozen_trials() if trial.state == TrialState.RUNNING]
            return [self._assign(n, owner, None) for n in running if n not in owners or not alive(owners[n])]

    def owner(self, number: int) -> str:
        """Return the name of a trial's owner, or an empty string if it has none."""
        try:
            return str(json.loads(self._owner_file(number).read_text())["owner"])
        except FileNotFoundError:
            return ""

    def only_external_owners(self) -> bool:
        """Return whether every running trial belongs to an external program."""
        return all(record["owner"].startswith(EXTERNAL) for _, record in self._owners())

    def report(self, number: int, step: int, value: float) -> bool:
        """Report the first objective after a step, and return whether the trial should be pruned.

        Args:
            number: Number of the trial.
            step: Epochs or folds done, counted from 1. A step that was reported before keeps its value.
            value: The objective.

        Returns:
            Whether to prune. Always False for several objectives.

        Raises:
            RunError: There is no such trial, or it has ended.
        """
        trial = self._running_trial(number)
        several = len(self.config.objectives) > 1
        if step not in trial.intermediate_values:
            self._storage.set_trial_intermediate_value(trial._trial_id, step, float(value))
            if several or self.config.pruner.name == "none":
                return False
            trial = self._storage.get_trial(trial._trial_id)
        if several:
            return False
        return bool(self.optuna_study.pruner.prune(self.optuna_study, trial))

    def tell(
        self,
        number: int,
        values: float | Sequence[float] | None = None,
        *,
        state: State = "complete",
        reason: str = "",
        **facts: Any,
    ) -> bool:
        """Record how a trial ended.

        Args:
            number: Number of the trial.
            values: The objectives of a complete trial. A value that is not finite makes the trial a failed one.
            state: `complete`, `pruned` or `failed`.
            reason: Why it was pruned or failed.
            facts: More fields of `TrialSummary`: seconds, cpu, spread, attempts, started.

        Returns:
            False if the trial had ended before. Then nothing changes.

        Raises:
            RunError: There is no such trial, or the number of values is not the number of objectives.
        """
        numbers = () if values is None else (float(values),) if isinstance(values, (int, float)) else tuple(values)
        if state == "complete" and len(numbers) != len(self.config.objectives):
            raise RunError(f"trial {number}: {len(numbers)} values for {len(self.config.objectives)} objectives")
        if not all(map(math.isfinite, numbers)):
            state, reason = "failed", reason or f"its objective is {', '.join(map(str, numbers))}"
        with self._lock.held():
            trial = self._frozen_trial(number)
            if trial.state.is_finished():
                self._owner_file(number).unlink(missing_ok=True)
                return False
            attributes = {key: value for key, value in {"reason": reason, **facts}.items() if value}
            self._storage.set_trial_user_attr(trial._trial_id, _FACTS, attributes)
            optuna_state = {name: each for each, name in _STATES.items()}[state]
            self.optuna_study.tell(number, list(numbers) if state == "complete" else None, state=optuna_state)
            self._owner_file(number).unlink(missing_ok=True)
        return True

    def check_lease(self, number: int, lease: str) -> None:
        """Check that an external program still owns a trial.

        Raises:
            RunError: The trial has another owner, or has ended.
        """
        if self.owner(number) != lease:
            raise RunError(f"trial {number}: the lease {lease} is gone; the trial has another owner or has ended")

    def trials(self) -> list[TrialSummary]:
        """Return every trial in order of number."""
        return [self._summary(trial) for trial in self._frozen_trials()]

    def trial(self, number: int) -> TrialSummary:
        """Return one trial.

        Raises:
            RunError: There is no such trial.
        """
        return self._summary(self._frozen_trial(number))

    def count(self) -> dict[State, int]:
        """Return the number of trials in each state; `waiting` counts those that were not asked for yet."""
        counts: dict[State, int] = dict.fromkeys(_STATES.values(), 0)
        for trial in self._frozen_trials():
            counts[_STATES[trial.state]] += 1
        counts["waiting"] = max(self.total_trials - sum(counts.values()), 0)
        return counts

    def snapshot(self) -> StudySnapshot:
        """Return the settings and all trials as plain data."""
        return StudySnapshot(self.config, self.trials())

    def best(self) -> list[TrialSummary]:
        """Return the best trial, or the Pareto front for several objectives; empty if no trial is complete."""
        return self.snapshot().best()

    def importances(self) -> dict[str, float]:
        """Return the share of the objective's differences that each parameter explains, the largest first."""
        return self.snapshot().importances()

    def _summary(self, trial: FrozenTrial) -> TrialSummary:
        facts = trial.user_attrs.get(_FACTS, {})
        started = trial.datetime_start.timestamp() if trial.datetime_start else 0.0
        return TrialSummary(
            number=trial.number,
            state=_STATES[trial.state],
            settings=space.settings_from_params(trial.params, self.config.space),
            values=tuple(trial.values) if trial.state == TrialState.COMPLETE and trial.values else (),
            reports=dict(trial.intermediate_values),
            **{"started": started, **facts, "spread": tuple(facts.get("spread", ()))},
        )

    def _frozen_trials(self) -> list[FrozenTrial]:
        return self.optuna_study.get_trials(deepcopy=False)

    def _frozen_trial(self, number: int) -> FrozenTrial:
        trials = self._frozen_trials()
        if not 0 <= number < len(trials):
            raise RunError(f"{self.folder.path}: no trial {number}; it has {len(trials)} trials, counted from 0")
        return trials[number]

    def _running_trial(self, number: int) -> FrozenTrial:
        trial = self._frozen_trial(number)
        if trial.state.is_finished():
            raise RunError(f"trial {number} has ended: {_STATES[trial.state]}")
        return trial

    def _assign(self, number: int, owner: str, within: float | None) -> ProposedTrial:
        """Give a trial to another owner. Parameters that its first owner did not ask for yet are asked for now."""
        trial = self._frozen_trial(number)
        self._write_owner(number, owner, within)
        if any(key not in trial.params for key in self.config.space):
            live = optuna.trial.Trial(self.optuna_study, trial._trial_id)
            return ProposedTrial(number, space.suggest_values(live, self.config.space))
        return ProposedTrial(number, space.settings_from_params(trial.params, self.config.space))

    def _owner_file(self, number: int) -> Path:
        return self.folder.owners / f"{number}.json"

    def _write_owner(self, number: int, owner: str, within: float | None) -> None:
        until = {} if within is None else {"until": time.time() + within}
        write_text(self._owner_file(number), json.dumps({"owner": owner, **until}))

    def _owners(self) -> Iterator[tuple[int, dict[str, Any]]]:
        for path in sorted(self.folder.owners.glob("*.json"), key=lambda file: int(file.stem)):
            yield int(path.stem), json.loads(path.read_text())


def _close_connections(storage: Any) -> None:
    """Close the connections of a database storage."""
    engine = getattr(getattr(storage, "_backend", storage), "engine", None)
    if engine is not None:
        engine.dispose()
