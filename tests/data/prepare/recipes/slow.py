"""A slow recipe that logs its calls, and that kills its worker if the settings say so."""

import os
import signal
import time
from pathlib import Path
from typing import Any

from clew import Recipe, Section, Table, readers


class Slow(Recipe):
    class Config(Section):
        seconds: float = 0.02
        log: str = ""
        deadly: int = -1
        """The event that kills the process that prepares it."""
        scale: float = 1.0

    def read(self, path: str) -> Any:
        return readers.read(path, columns=["event", "value"], integers=[], chunk_mb=1e-4)

    def prepare(self, events: Table) -> Table:
        time.sleep(self.config.seconds)
        if self.config.deadly in events.fixed("event"):
            os.kill(os.getpid(), signal.SIGKILL)
        if self.config.log and len(events):
            with Path(self.config.log).open("a") as stream:
                stream.write(f"{events.fixed('event')[0]}\n")
        value = events.ragged("value")
        return events.join({"value": value.share(value.values * self.config.scale)})

    def model(self) -> Any:
        raise AssertionError("only prepared here")
