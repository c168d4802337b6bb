"""`client.jobs`: jobs on a server."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence

from clew.client.connection import Connection
from clew.client.job import FINAL_STATES, Job, JobDetail, JobEvent, State, Submission
from clew.errors import ServerError


class Jobs:
    """The queue of jobs. All methods raise `ServerError` if the server does not answer or refuses the request.

    Example:
        >>> from clew.client.submission import submission
        >>> job = client.jobs.submit(submission("tracking", dataset="/data/tracking"))  # doctest: +SKIP
        >>> client.jobs.wait(job.id).state  # doctest: +SKIP
        'done'
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def submit(self, job: Submission) -> JobDetail:
        """Add a job to the queue. If the answer gets lost and the request is repeated, there is still one job.

        Args:
            job: The job; `clew.client.submission.submission` makes one from a recipe.
        """
        with_uid = job if job.uid is not None else job.model_copy(update={"uid": secrets.token_hex(8)})
        return JobDetail.model_validate(self._connection.call("POST", "/jobs", body=with_uid.model_dump(mode="json")))

    def list(
        self,
        *,
        state: Sequence[State] = (),
        kind: str | None = None,
        owner: str | None = None,
        study: int | None = None,
    ) -> Iterator[Job]:
        """List jobs, the newest first. Trials are listed only by `study`, or with kind `trial`.

        Args:
            state: Only jobs in these states.
            kind: Only jobs of this kind.
            owner: Only jobs of this user.
            study: Only the trials of this study.
        """
        parameters = {"state": list(state) or None, "kind": kind, "owner": owner, "study": study}
        return (Job.model_validate(item) for item in self._connection.pages("/jobs", parameters))

    def get(self, job: int) -> JobDetail:
        """Return a job."""
        return JobDetail.model_validate(self._connection.call("GET", f"/jobs/{job}"))

    def cancel(self, job: int) -> JobDetail:
        """Cancel a job: at once if it waits, soon if it runs."""
        return JobDetail.model_validate(self._connection.call("POST", f"/jobs/{job}/cancel"))

    def requeue(self, job: int) -> JobDetail:
        """Put a job that ended early back into the queue; it resumes where it stopped."""
        return JobDetail.model_validate(self._connection.call("POST", f"/jobs/{job}/requeue", repeatable=False))

    def retry(self, job: int) -> JobDetail:
        """Submit a copy of a job, which starts from the beginning."""
        return JobDetail.model_validate(self._connection.call("POST", f"/jobs/{job}/retry", repeatable=False))

    def history(self, job: int) -> Iterator[JobEvent]:
        """List the events of a job, the oldest first."""
        return (JobEvent.model_validate(item) for item in self._connection.pages(f"/jobs/{job}/history"))

    def log(self, job: int, *, attempt: int | None = None) -> Iterator[str]:
        """Yield what a job has printed so far, in parts.

        Args:
            job: The job.
            attempt: Its attempt; default: the newest.
        """
        begin = 0
        while True:
            part = self._connection.call("GET", f"/jobs/{job}/log", params={"attempt": attempt, "from": begin})
            yield part["text"]
            if part["next"] == begin or part["next"] >= part["size"]:
                return
            begin = part["next"]

    def follow(self, job: int) -> Iterator[Job | str]:
        """Follow a job until it has ended. A broken stream is resumed where it was.

        Yields:
            The job whenever its state changes, and text that it printed.
        """
        begin, attempt, state = 0, None, ""
        last_event = time.monotonic()
        while True:
            try:
                for name, data in self._connection.events(f"/jobs/{job}/events", {"from": begin, "attempt": attempt}):
                    last_event = time.monotonic()
                    if name == "end":
                        return
                    if name == "log":
                        begin, attempt = data["next"], data["attempt"]
                        yield data["text"]
                    elif name == "state" and f"{data['state']} {data['attempt']}" != state:
                        state = f"{data['state']} {data['attempt']}"
                        yield Job.model_validate(data)
            except ServerError as error:
                if error.status or time.monotonic() - last_event > self._connection.retry_seconds:
                    raise
            time.sleep(0.5)

    def wait(self, job: int, *, seconds: float | None = None) -> Job:
        """Wait until a job has ended and return it.

        Args:
            job: The job.
            seconds: How long to wait; None: without limit.

        Raises:
            ServerError: the job has not ended after `seconds`.
        """
        end = None if seconds is None else time.monotonic() + seconds
        pause = 0.1
        while (current := self.get(job)).state not in FINAL_STATES:
            if end is not None and time.monotonic() > end:
                raise ServerError(f"job {job} is {current.state} after {seconds:g} s")
            time.sleep(pause)
            pause = min(1.5 * pause, 2.0)
        return current
