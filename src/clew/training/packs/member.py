"""One member of a pack: a model with a run of its own."""

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
from clew.training.early_stopping import ValidationTracker
from clew.training.schedule import Schedule

FINISHED, STOPPED, FAILED, LOST = 0, 75, 1, 3
"""How the training of a member ends, as an exit code."""


@dataclass(eq=False)
class PackMember:
    """One member of a pack: the run it is recorded in, and what it is trained with."""

    run: Run
    recipe: Recipe
    config: TrainConfig
    lease: Lease | None = None
    state: dict[str, Any] | None = None
    """The checkpoint to continue from."""
    code: int | None = None
    """How it ended, once it has."""
    message: str = ""
    cpu: float = 0.0
    """Its share of the processor time, in seconds."""
    writer: RecordWriter = field(init=False)
    verdict: ValidationTracker = field(init=False)
    schedule: Schedule = field(init=False)
    end_reason: str = ""
    """Why its training ends before the last epoch."""

    @property
    def lost(self) -> bool:
        """Whether another process has taken over the run: nothing may be written any more."""
        return self.lease is not None and self.lease.lost

    def begin(self) -> None:
        """Start to write records."""
        self.writer = self.run.writer("rank-0")
        self.writer.write("start", schema=SCHEMA, host=socket.gethostname(), pid=os.getpid(), rank=0, ranks=1)

    def end(self, code: int, message: str = "", **fields: Any) -> None:
        """Write the last record, unless another process has taken over the run.

        Args:
            code: FINISHED, STOPPED, FAILED or LOST.
            message: Why it ended.
            **fields: More fields of the record: `error`, the name of the exception, and its facts.
        """
        self.code, self.message = code, message
        status = {FINISHED: "finished", STOPPED: "stopped", FAILED: "failed"}.get(code)
        if status is not None:
            self.writer.write("end", status=status, message=message, **fields, cpu=self.cpu)
        self.writer.close()
