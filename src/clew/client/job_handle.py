"""A job that this program submitted: its state, its output, its run and its error."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from clew.client.job import FINAL_STATES, JobDetail, State
from clew.client.runs import RunInfo
from clew.errors import JobError, RunError

if TYPE_CHECKING:
    from clew.client.client import Client


@dataclass(frozen=True)
class JobHandle:
    """A job on a server. Every property asks the server.

    All methods raise `ServerError` if the server does not answer.

    Example:
        >>> job = client.submit("my_recipe.py", dataset="rucio:user.me:samples")  # doctest: +SKIP
        >>> for text in job.follow():  # doctest: +SKIP
        ...     print(text, end="")
        >>> job.state, job.error  # doctest: +SKIP
        ('failed', 'my_recipe.py:31: ValueError: no tracks')
    """

    client: Client
    id: int
    """Its number on the server, for `clew jobs`, `clew logs` and `clew stop`."""

    def __repr__(self) -> str:
        return f"JobHandle({self.id} on {self.client.server})"

    def detail(self) -> JobDetail:
        """Return everything that the server knows about it."""
        return self.client.jobs.get(self.id)

    @property
    def state(self) -> State:
        """`waiting`, `claimed`, `running`, `done`, `failed`, `cancelled` or `lost`."""
        return self.detail().state

    @property
    def error(self) -> str | None:
        """Why it failed: file, line and message where its code raised an error. None if it did not fail."""
        job = self.detail()
        return job.reason or job.state if job.state in FINAL_STATES and job.state != "done" else None

    @property
    def stored(self) -> str | None:
        """Where its outputs are in its store; None if they are not there (yet)."""
        return self.detail().stored

    def follow(self) -> Iterator[str]:
        """Yield what it prints until it has ended."""
        return (news for news in self.client.jobs.follow(self.id) if isinstance(news, str))

    def log(self) -> str:
        """Return what it has printed so far."""
        return "".join(self.client.jobs.log(self.id))

    def wait(self, *, seconds: float | None = None) -> JobDetail:
        """Wait until it has succeeded.

        Args:
            seconds: How long to wait; None: without limit.

        Raises:
            JobError: It failed, was cancelled or lost. The message is its own error.
            ServerError: It has not ended after `seconds`.
        """
        ended = self.client.jobs.wait(self.id, seconds=seconds)
        if ended.state != "done":
            raise JobError(f"job {self.id} ({ended.name}): {self.error}")
        return self.detail()

    def cancel(self) -> None:
        """Cancel it: at once if it waits, soon if it runs."""
        self.client.jobs.cancel(self.id)

    def run(self) -> RunInfo:
        """Return the run that it records on the server.

        Raises:
            RunError: It has recorded none yet.
        """
        number = self.detail().run
        if number is None:
            raise RunError(f"job {self.id} has recorded no run yet")
        return self.client.runs.get(number)

    def download(self, name: str, to: Path | str) -> Path:
        """Copy a file of its run from the server, such as `report.html` or `checkpoints/best.safetensors`.

        Args:
            name: The name of the file in the run.
            to: The file to write.
        """
        return self.client.artefacts.download(self.run().id, name, to)
