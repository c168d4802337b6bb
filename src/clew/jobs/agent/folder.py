"""The agent's folder. These classes define every file name in it."""

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
"""Seconds to wait for an agent that is about to exit."""


@dataclass(frozen=True)
class JobFolder:
    """The folder of one job, for all its attempts."""

    path: Path

    @property
    def order_file(self) -> Path:
        """The order of the newest attempt."""
        return self.path / "order.json"

    @property
    def code(self) -> Path:
        """The files that were sent with the job."""
        return self.path / "code"

    @property
    def spec_file(self) -> Path:
        """The settings; recipes in files are next to it."""
        return self.code / "spec.yaml"

    def attempt(self, number: int) -> Path:
        """The folder of an attempt."""
        return self.path / f"attempt-{number}"

    def confirmed_file(self, number: int) -> Path:
        """It exists when the server knows how an attempt ended."""
        return self.attempt(number) / "confirmed"

    def output(self, name: str) -> Path:
        """The run, study or dataset."""
        return self.path / "output" / name

    def order(self) -> JobOrder | None:
        """The newest order; None where none was written completely."""
        if not self.order_file.exists():
            return None
        return JobOrder.model_validate_json(self.order_file.read_text())

    def accept(self, order: JobOrder) -> None:
        """Write an order, readable by its owner only: it has a token in it."""
        self.path.mkdir(parents=True, exist_ok=True)
        self.path.chmod(0o700)
        self.code.mkdir(exist_ok=True)
        for name, text in order.files.items():
            file = self.code / name
            file.parent.mkdir(parents=True, exist_ok=True)
            write_text(file, text)
        write_text(self.spec_file, to_yaml(order.spec))
        write_text(self.order_file, order.model_dump_json())


@dataclass(frozen=True)
class AgentFolder:
    """The folder of an agent: its identity and its jobs."""

    path: Path

    @property
    def name_file(self) -> Path:
        """What identifies this agent."""
        return self.path / "agent.json"

    @property
    def jobs(self) -> Path:
        """One folder per job."""
        return self.path / "jobs"

    @property
    def datasets(self) -> str:
        """A glob of the folders that may hold datasets which its jobs prepared."""
        return str(self.jobs / "*" / "output" / "*")

    def job(self, job: str) -> JobFolder:
        """The folder of a job; it may not exist yet."""
        return JobFolder(self.jobs / job)

    def folds(self, job: str) -> Path:
        """The datasets of the folds of a study, which its trials share; `job` is the key of the study's job."""
        return self.path / "folds" / job

    def unconfirmed(self) -> Iterator[tuple[JobFolder, JobOrder]]:
        """Jobs whose newest attempt has an end that the server has not confirmed."""
        for path in sorted(self.jobs.glob("*")):
            folder = JobFolder(path)
            order = folder.order()
            if order is not None and not folder.confirmed_file(order.attempt).exists():
                yield folder, order

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder for this process while the block runs. The lock ends with the process.

        Raises:
            RunError: another agent uses it, or it cannot be created.
        """
        lock = contextlib.ExitStack()
        try:
            self.jobs.mkdir(parents=True, exist_ok=True)
            self.path.chmod(0o700)
            lock.enter_context(hold_lock(self.path / "lock", timeout=_PATIENCE, mode=0o600))
        except BlockingIOError:
            raise RunError(f"{self.path}: another agent uses it; name another folder with --folder") from None
        except OSError as error:
            raise RunError(f"{self.path}: cannot be used ({error.strerror}); name another with --folder") from error
        with lock:
            yield
