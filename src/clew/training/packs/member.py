"""One model of a pack as a run of its own: its records and its end."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field
from typing import Any

from clew.jobs.lease import Lease
from clew.recipe import Recipe
from clew.runs import RecordWriter, Run
from clew.runs.records import SCHEMA
from clew.training.config import TrainConfig
from clew.training.control import Schedule, ValidationTracker

FINISHED, STOPPED, FAILED, LOST = 0, 75, 1, 3
"""How a model's training ends, as an exit code."""


@dataclass(eq=False)
class Lane:
    """One model of a pack: the run it is recorded in, and what it is trained with."""

    run: Run
    recipe: Recipe
    config: TrainConfig
    lease: Lease | None = None
    state: dict[str, Any] | None = None
    """What to go on from."""
    code: int | None = None
    """How it ended."""
    message: str = ""
    cpu: float = 0.0
    writer: RecordWriter = field(init=False)
    verdict: ValidationTracker = field(init=False)
    schedule: Schedule = field(init=False)
    over: str = ""
    """Why its training ends before the last epoch."""

    def begin(self) -> None:
        """From here on, records are written."""
        self.writer = self.run.writer("rank-0")
        self.writer.write("start", schema=SCHEMA, host=socket.gethostname(), pid=os.getpid(), rank=0, ranks=1)

    def end(self, code: int, message: str = "", error: str = "") -> None:
        """Write the last record; not where another has the run by now."""
        self.code, self.message = code, message
        status = {FINISHED: "finished", STOPPED: "stopped", FAILED: "failed"}.get(code)
        if status is not None:
            told = {"error": error} if error else {}
            self.writer.write("end", status=status, message=message, **told, cpu=self.cpu)
        self.writer.close()
