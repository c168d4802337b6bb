"""Trials that a server assigned to one job, in the form in which a coordinator sees a study.

The server proposes trials, decides what is pruned and stores the results. The job's token is its lease on the trials:
it becomes void when the server assigns them to another agent. A result is written to a file before it is sent, so that
it is not lost while the server is away; what the job could not send, its agent sends after the job has ended.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from clew.client.connection import Connection
from clew.core.files import write_text
from clew.errors import ServerError
from clew.tuning.config import TuneConfig
from clew.tuning.folder import StudyFolder
from clew.tuning.proposed_trial import ProposedTrial
from clew.tuning.snapshot import State

_UNSENT, _SENT = ".json", ".sent"
"""Suffixes of the file of a result, before and after the server has it."""
_LONGEST_REASON = 1000


class AssignedStudy:
    """The trials of one job. It proposes these and no others."""

    def __init__(
        self,
        folder: StudyFolder,
        config: TuneConfig,
        trials: Iterable[ProposedTrial],
        number: int,
        connection: Connection,
    ) -> None:
        """Prepare the trials; nothing is sent.

        Args:
            folder: The folder of the job's runs.
            config: The settings of the study.
            trials: The assigned trials. Those that have a result in the folder are not proposed again.
            number: The number of the study on the server.
            connection: The connection to the server, with the token of the job.
        """
        self.folder, self.config = folder, config
        self.is_lost = False
        """Whether the server has assigned the trials to another agent."""
        self.on_result: Callable[[int, State, str], None] = lambda number, state, text: None
        """Called with number, state and values or reason of every trial that ends."""
        self._trials = {trial.number: trial for trial in trials}
        self._path, self._connection = f"/studies/{number}", connection
        self._owners: dict[int, str] = {}
        self._reports: list[tuple[int, int, float]] = []
        results_folder(folder).mkdir(exist_ok=True)
        self._states: dict[int, State] = {int(file.stem): "complete" for file in results_folder(folder).iterdir()}

    def ask(self, owner: str) -> ProposedTrial | None:
        """Return the next trial without a result, or None."""
        for number, trial in self._trials.items():
            if number not in self._states and number not in self._owners and not self.is_lost:
                self._owners[number] = owner
                return trial
        return None

    def take_over(self, owner: str, alive: Callable[[str], bool]) -> list[ProposedTrial]:
        """Return no trials: the server assigns those of other agents."""
        return []

    def owner(self, number: int) -> str:
        """Return the name of a trial's owner, or an empty string if it is lost."""
        return "" if self.is_lost else self._owners.get(number, "")

    def only_external_owners(self) -> bool:
        """Return False: all trials belong to this job."""
        return False

    def count(self) -> dict[State, int]:
        """Return the number of trials in each state."""
        counts: dict[State, int] = dict.fromkeys(("waiting", "running", "complete", "pruned", "failed"), 0)
        for number in self._trials:
            if not self.is_lost:
                counts[self._states.get(number, "running" if number in self._owners else "waiting")] += 1
        return counts

    def report(self, number: int, step: int, value: float) -> bool:
        """Send an intermediate value and return whether the server prunes the trial. See `Study.report`."""
        self._reports.append((number, step, float(value)))
        prune = False
        while self._reports and not self.is_lost:
            trial, trial_step, trial_value = self._reports[0]
            answer = self._call("report", {"trial": trial, "step": trial_step, "value": trial_value})
            if answer is None:
                return False
            del self._reports[0]
            prune = bool(answer["prune"]) if trial == number else prune
        return prune

    def tell(
        self,
        number: int,
        values: float | Sequence[float] | None = None,
        *,
        state: State = "complete",
        reason: str = "",
        **facts: Any,
    ) -> bool:
        """Store the result of a trial and send it, with all that could not be sent before. See `Study.tell`."""
        numbers = [] if values is None else [values] if isinstance(values, (int, float)) else list(values)
        if state == "complete" and not all(map(math.isfinite, numbers)):
            state, reason = "failed", f"its objective is {', '.join(map(str, numbers))}"
        body: dict[str, Any] = {"trial": number, **{name: value for name, value in facts.items() if value}}
        if state == "complete":
            body["values"] = numbers
        elif state == "pruned":
            body |= {"pruned": True, "reason": reason[:_LONGEST_REASON]}
        else:
            body["failed"] = reason[:_LONGEST_REASON] or "it failed without a message"
        write_text(results_folder(self.folder) / f"{number}{_UNSENT}", json.dumps(body))
        self._states[number] = state
        self.on_result(number, state, reason or "  ".join(f"{value:.6g}" for value in numbers))
        for file in _unsent(self.folder):
            if self._call("tell", json.loads(file.read_text())) is None:
                return True
            file.rename(file.with_suffix(_SENT))
        return True

    def _call(self, action: str, body: dict[str, Any]) -> Any:
        """Return the server's answer; None if the server is away or the trials are lost."""
        try:
            return self._connection.call("POST", f"{self._path}/{action}", body=body)
        except ServerError as error:
            if error.status and error.status < 500 and error.status != 429:
                self.is_lost = True
            return None


def results_folder(folder: StudyFolder) -> Path:
    """Return the folder with one file per trial that has ended."""
    return folder.path / "results"


def send_results(folder: StudyFolder, number: int, connection: Connection) -> None:
    """Send the results that a job could not send.

    Args:
        folder: The folder of the job's runs.
        number: The number of the study on the server.
        connection: The connection to the server, with the token of the job.

    Raises:
        ServerError: The server is away, or refuses a result.
    """
    for file in _unsent(folder):
        connection.call("POST", f"/studies/{number}/tell", body=json.loads(file.read_text()))
        file.rename(file.with_suffix(_SENT))


def _unsent(folder: StudyFolder) -> list[Path]:
    return sorted(results_folder(folder).glob(f"*{_UNSENT}"))
