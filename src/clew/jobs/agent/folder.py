"""The agent's folder. These objects own every file name in it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from clew.client.job import JobOrder
from clew.core.config import to_yaml
from clew.core.file_lock import hold_lock
from clew.core.files import write_text
from clew.errors import RunError

_PATIENCE = 5.0
"""Seconds that an agent which is about to leave is given."""


@dataclass(frozen=True)
class JobFolder:
    """All that an agent has of one job, over all its attempts."""

    path: Path

    @property
    def order_file(self) -> Path:
        """What is to be done: that of the newest attempt."""
        return self.path / "order.json"

    @property
    def spec_file(self) -> Path:
        """The settings; recipes in files lie beside it."""
        return self.path / "spec.yaml"

    def attempt(self, number: int) -> Path:
        """Where the keeper of an attempt writes."""
        return self.path / f"attempt-{number}"

    def told_file(self, number: int) -> Path:
        """There when the server knows how an attempt ended."""
        return self.attempt(number) / "told"

    def output(self, name: str) -> Path:
        """The run, study or dataset."""
        return self.path / "output" / name

    def order(self) -> JobOrder | None:
        """The newest, or None where none was written whole."""
        if not self.order_file.exists():
            return None
        return JobOrder.model_validate_json(self.order_file.read_text())

    def accept(self, order: JobOrder) -> None:
        """Write down what is to be done; for the owner alone, as a token is in it."""
        self.path.mkdir(parents=True, exist_ok=True)
        self.path.chmod(0o700)
        for name, text in order.files.items():
            write_text(self.path / name, text)
        write_text(self.spec_file, to_yaml(order.spec))
        write_text(self.order_file, order.model_dump_json())


@dataclass(frozen=True)
class AgentFolder:
    """Where an agent keeps its name and its jobs."""

    path: Path

    @property
    def name_file(self) -> Path:
        """What tells it from other agents."""
        return self.path / "agent.json"

    @property
    def jobs(self) -> Path:
        """A folder a job."""
        return self.path / "jobs"

    def job(self, job: str) -> JobFolder:
        """That of a job; it may not be there yet."""
        return JobFolder(self.jobs / job)

    def known(self) -> Iterator[tuple[JobFolder, JobOrder]]:
        """Jobs whose newest attempt the server has not heard the end of."""
        for path in sorted(self.jobs.glob("*")):
            folder = JobFolder(path)
            order = folder.order()
            if order is not None and not folder.told_file(order.attempt).exists():
                yield folder, order

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """It is this process's while the block runs; the lock goes with the process.

        Raises:
            RunError: another agent is at it, or it cannot be made.
        """
        lock = contextlib.ExitStack()
        try:
            self.jobs.mkdir(parents=True, exist_ok=True)
            self.path.chmod(0o700)
            lock.enter_context(hold_lock(self.path / "lock", timeout=_PATIENCE, mode=0o600))
        except BlockingIOError:
            raise RunError(f"{self.path}: another agent works there; name another folder with --folder") from None
        except OSError as error:
            raise RunError(f"{self.path}: cannot be used ({error.strerror}); name another with --folder") from error
        with lock:
            yield
