"""Sends a study and its trials to the server of `clew login`, so that the dashboard shows it while it runs.

The study is registered before the first trial starts. Its number on the server is saved in the folder of the study,
where the process that sends the runs of the trials finds it. A thread sends the trials that changed. If the server
does not answer, the study continues, and the thread tries again.
"""

from __future__ import annotations

import contextlib
import json
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from clew.client.connection import Connection
from clew.client.credentials import credentials
from clew.core.files import write_text
from clew.errors import ServerError
from clew.runs.push import STUDY_FILE
from clew.storage import mask_secrets
from clew.tuning.config import TuneConfig

if TYPE_CHECKING:
    from clew.tuning.folder import StudyFolder
    from clew.tuning.snapshot import TrialSummary
    from clew.tuning.study import Study

_PERIOD = 3.0
"""Seconds between two snapshots of the trials."""
_GRACE = 15.0
"""Seconds that a study waits at its end for its last trials to be sent."""
_PAGE = 500
_SAME_FIELDS = ("number", "state", "settings", "seconds", "attempts")


class StudyPusher:
    """Sends one study. `send` may be called any number of times; each call sends what changed."""

    def __init__(self, folder: StudyFolder, config: TuneConfig, connection: Connection) -> None:
        self._folder, self._config, self._connection = folder, config, connection
        self._sent: dict[int, dict[str, Any]] = {}
        self.number: int | None = None
        """The number of the study on the server; None before `register`."""

    def register(self) -> int:
        """Create the study on the server, or find it, and save its number in the folder of the study.

        Raises:
            ServerError: the server does not answer, or refuses the study.
        """
        if self.number is None:
            body = {"name": self._folder.name, "tune": self._config.model_dump(mode="json"), "external": True}
            self.number = int(self._connection.call("POST", "/studies", body=body, repeatable=True)["id"])
            facts = {"server": mask_secrets(self._connection.server), "study": self.number}
            write_text(self._folder.path / STUDY_FILE, json.dumps(facts) + "\n")
        return self.number

    def send(self, trials: Sequence[TrialSummary]) -> None:
        """Send the trials that changed since the last call.

        Raises:
            ServerError: the server does not answer, or refuses them.
        """
        number = self.register()
        changed = [values for trial in trials if self._sent.get(trial.number) != (values := _trial_values(trial))]
        for first in range(0, len(changed), _PAGE):
            page = changed[first : first + _PAGE]
            self._connection.call("PUT", f"/studies/{number}/trials", body={"trials": page})
            self._sent |= {values["number"]: values for values in page}


def _trial_values(trial: TrialSummary) -> dict[str, Any]:
    values: dict[str, Any] = {name: getattr(trial, name) for name in _SAME_FIELDS}
    reports = {str(step): value if math.isfinite(value) else None for step, value in trial.reports.items()}
    values |= {"values": list(trial.values), "reports": reports, "started": trial.started, "run": trial.name}
    return {**values, "reason": trial.reason[:2000]}


@contextlib.contextmanager
def study_pushed(study: Study) -> Iterator[Callable[[], None]]:
    """Send a study to the server of `credentials` while the block runs, if there is one.

    Yields:
        A function for the coordinator to call now and then: it takes a snapshot of the trials, which a thread sends.
    """
    login = credentials()
    if login is None:
        yield lambda: None
        return
    with Connection(login.server, login.token, retry_seconds=0.0) as connection:
        thread = _SendingThread(StudyPusher(study.folder, study.config, connection))
        taken = 0.0

        def snapshot() -> None:
            nonlocal taken
            if time.monotonic() - taken > _PERIOD:
                thread.trials, taken = study.trials(), time.monotonic()

        thread.start()
        try:
            yield snapshot
        finally:
            thread.trials = study.trials()
            thread.end()


class _SendingThread(threading.Thread):
    """Sends the newest snapshot every few seconds, and once more at the end."""

    def __init__(self, pusher: StudyPusher) -> None:
        super().__init__(name="study", daemon=True)
        self._pusher, self._ended = pusher, threading.Event()
        self.trials: Sequence[TrialSummary] = ()
        with contextlib.suppress(ServerError):  # tried again with the first trials
            pusher.register()

    def run(self) -> None:
        while True:
            last = self._ended.wait(_PERIOD)
            with contextlib.suppress(ServerError):  # tried again with the next snapshot
                self._pusher.send(self.trials)
            if last:
                return

    def end(self) -> None:
        """Send the last snapshot, and wait a little for it."""
        self._ended.set()
        self.join(_GRACE)
