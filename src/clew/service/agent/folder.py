"""The agent's folder. These objects own every file name in it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from clew.config import to_yaml
from clew.errors import RunError
from clew.files import write_text
from clew.service.job import Order


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
        return self.path / name

    def order(self) -> Order | None:
        """The newest, or None where none was written whole."""
        if not self.order_file.exists():
            return None
        return Order.model_validate_json(self.order_file.read_text())

    def accept(self, order: Order) -> None:
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
        """Which server it serves, and what it is called there."""
        return self.path / "agent.json"

    @property
    def jobs(self) -> Path:
        """A folder a job."""
        return self.path / "jobs"

    def job(self, job: str) -> JobFolder:
        """That of a job; it may not be there yet."""
        return JobFolder(self.jobs / job)

    def known(self) -> Iterator[tuple[JobFolder, Order]]:
        """Jobs whose newest attempt the server has not heard the end of."""
        for path in sorted(self.jobs.glob("*")):
            folder = JobFolder(path)
            order = folder.order()
            if order is not None and not folder.told_file(order.attempt).exists():
                yield folder, order

    def identity(self, server: str) -> str | None:
        """The id that this server gave it, if it did."""
        if not self.name_file.exists():
            return None
        told = json.loads(self.name_file.read_text())
        return str(told["id"]) if told["server"] == server else None

    def remember(self, server: str, identity: str) -> None:
        """Keep the id for the next start."""
        write_text(self.name_file, json.dumps({"server": server, "id": identity}))

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """It is this process's while the block runs; the lock goes with the process.

        Raises:
            RunError: another agent is at it, or it cannot be made.
        """
        try:
            self.jobs.mkdir(parents=True, exist_ok=True)
            self.path.chmod(0o700)
            descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise RunError(f"{self.path}: cannot be used ({error.strerror}); name another with --folder") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise RunError(f"{self.path}: another agent works there; name another folder with --folder") from None
        try:
            yield
        finally:
            os.close(descriptor)

    def forget(self, job: str) -> None:
        """Remove all that is left of a job."""
        shutil.rmtree(self.jobs / job, ignore_errors=True)
