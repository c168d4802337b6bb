"""`client.studies`: studies on a server, which propose trials to processes anywhere."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from clew.client.connection import Connection
from clew.client.trial import AssignedTrial, StudyDetail, StudyRow, Trial


class Studies:
    """Hyper-parameter studies. All methods raise `ServerError` if the server does not answer or refuses the request.

    Example:
        >>> study = client.studies.make("widths", {"space": space, "objective": "loss", "trials": 20})  # doctest: +SKIP
        >>> for trial in client.studies.ask(study.id, count=4):  # doctest: +SKIP
        ...     client.studies.tell(study.id, trial.trial, train(trial.settings), lease=trial.lease)
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def make(
        self, name: str, tune: Mapping[str, Any], *, epochs: int = 1, group: str | None = None, external: bool = False
    ) -> StudyDetail:
        """Create a study.

        Args:
            name: Its name.
            tune: The section `tune` of a YAML file: space, objective, trials, sampler, pruner.
            epochs: Steps of a complete trial, for pruners that count them.
            group: A group that may see it.
            external: The trials are proposed elsewhere and pushed here; `ask` is then not possible.
        """
        body = {"name": name, "tune": dict(tune), "epochs": epochs, "group": group, "external": external}
        return StudyDetail.model_validate(self._connection.call("POST", "/studies", body=body, repeatable=external))

    def list(self) -> Iterator[StudyRow]:
        """List all studies, the newest first."""
        return (StudyRow.model_validate(item) for item in self._connection.pages("/studies"))

    def get(self, study: int) -> StudyDetail:
        """Return a study."""
        return StudyDetail.model_validate(self._connection.call("GET", f"/studies/{study}"))

    def trials(self, study: int) -> Iterator[Trial]:
        """List the trials of a study, in order of number."""
        return (Trial.model_validate(item) for item in self._connection.pages(f"/studies/{study}/trials"))

    def ask(self, study: int, *, count: int = 1, within: float | None = None) -> Sequence[AssignedTrial]:
        """Request trials to run.

        Args:
            study: The study.
            count: How many.
            within: Seconds after which a trial without a result is proposed again. With it, a lost answer does no harm.

        Returns:
            Fewer than `count` trials, or none, when the study has proposed all its trials.
        """
        body = {"count": count, "within": within}
        answer = self._connection.call("POST", f"/studies/{study}/ask", body=body, repeatable=within is not None)
        return [AssignedTrial.model_validate(item) for item in answer]

    def report(self, study: int, trial: int, *, step: int, value: float, lease: str | None = None) -> bool:
        """Report an intermediate value of the objective.

        Args:
            study: The study.
            trial: The number of the trial.
            step: The step, counted from 1.
            value: The first objective at this step.
            lease: The lease of the proposed trial; the report is refused if the trial was proposed again since.

        Returns:
            Whether the trial should be pruned.
        """
        body = {"trial": trial, "step": step, "value": value, "lease": lease}
        return bool(self._connection.call("POST", f"/studies/{study}/report", body=body)["prune"])

    def tell(
        self,
        study: int,
        trial: int,
        values: float | Sequence[float] | None = None,
        *,
        pruned: bool = False,
        failed: str | None = None,
        lease: str | None = None,
    ) -> bool:
        """Report the result of a trial: one of `values`, `pruned` and `failed`.

        Args:
            study: The study.
            trial: The number of the trial.
            values: The objectives. If one is not finite, the trial counts as failed.
            pruned: The trial was pruned.
            failed: Why the trial failed.
            lease: The lease of the proposed trial; the result is refused if the trial was proposed again since.

        Returns:
            False if a result was reported before; the first one counts.
        """
        results = [] if values is None else [values] if isinstance(values, (int, float)) else list(values)
        if not all(map(math.isfinite, results)):
            failed, results = failed or f"its objective is {', '.join(map(str, results))}", []
        body = {"trial": trial, "values": results, "pruned": pruned, "failed": failed, "lease": lease}
        return bool(self._connection.call("POST", f"/studies/{study}/tell", body=body)["accepted"])

    def best(self, study: int) -> Sequence[Trial]:
        """Return the best trial, or the Pareto front if there are several objectives."""
        return [Trial.model_validate(item) for item in self._connection.call("GET", f"/studies/{study}/best")]

    def push(self, folder: Path | str) -> int:
        """Send a study's folder as it is now: its settings and the results of its trials. Its runs are pushed as runs.

        Args:
            folder: A folder that `clew tune` made.

        Returns:
            The id of the study on the server.
        """
        from clew.tuning.study import Study
        from clew.tuning.study_push import StudyPusher

        study = Study.open(folder)
        pusher = StudyPusher(study.folder, study.config, self._connection)
        pusher.send(study.trials())
        return pusher.register()
