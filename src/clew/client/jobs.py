"""Jobs of a server."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence

from clew.client.connection import Link
from clew.client.job import ENDS, Job, JobDetail, JobEvent, State, Submission
from clew.errors import ServerError


class Jobs:
    """The queue."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def submit(self, job: Submission) -> JobDetail:
        """Put a job into the queue, once: an answer that gets lost does not make two of it."""
        named = job if job.uid is not None else job.model_copy(update={"uid": secrets.token_hex(8)})
        return JobDetail.model_validate(self._link.call("POST", "/jobs", body=named.model_dump(mode="json")))

    def list(self, *, state: Sequence[State] = (), kind: str | None = None, owner: str | None = None) -> Iterator[Job]:
        """Jobs, the newest first."""
        asked = {"state": list(state) or None, "kind": kind, "owner": owner}
        return (Job.model_validate(each) for each in self._link.pages("/jobs", asked))

    def get(self, job: int) -> JobDetail:
        """One."""
        return JobDetail.model_validate(self._link.call("GET", f"/jobs/{job}"))

    def cancel(self, job: int) -> JobDetail:
        """Have it end."""
        return JobDetail.model_validate(self._link.call("POST", f"/jobs/{job}/cancel"))

    def requeue(self, job: int) -> JobDetail:
        """Have one that ended early go on where it stopped."""
        return JobDetail.model_validate(self._link.call("POST", f"/jobs/{job}/requeue", again=False))

    def retry(self, job: int) -> JobDetail:
        """A new job like this one, from the start."""
        return JobDetail.model_validate(self._link.call("POST", f"/jobs/{job}/retry", again=False))

    def history(self, job: int) -> Iterator[JobEvent]:
        """What happened to it, the oldest first."""
        return (JobEvent.model_validate(each) for each in self._link.pages(f"/jobs/{job}/history"))

    def log(self, job: int, *, attempt: int | None = None) -> Iterator[str]:
        """What it has printed so far, in pieces."""
        begin = 0
        while True:
            piece = self._link.call("GET", f"/jobs/{job}/log", params={"attempt": attempt, "from": begin})
            yield piece["text"]
            if piece["next"] == begin or piece["next"] >= piece["size"]:
                return
            begin = piece["next"]

    def follow(self, job: int) -> Iterator[Job | str]:
        """The job whenever its state changes, and what it prints, as it happens, until it has ended.

        A stream that breaks is taken up where it was.
        """
        begin, attempt, state = 0, None, ""
        broken = time.monotonic()
        while True:
            try:
                for name, data in self._link.events(f"/jobs/{job}/events", {"from": begin, "attempt": attempt}):
                    broken = time.monotonic()
                    if name == "end":
                        return
                    if name == "log":
                        begin, attempt = data["next"], data["attempt"]
                        yield data["text"]
                    elif name == "state" and f"{data['state']} {data['attempt']}" != state:
                        state = f"{data['state']} {data['attempt']}"
                        yield Job.model_validate(data)
            except ServerError as error:
                if error.status or time.monotonic() - broken > self._link.patience:
                    raise
            time.sleep(0.5)

    def wait(self, job: int, *, seconds: float | None = None) -> Job:
        """Wait until it has ended.

        Raises:
            ServerError: it has not, after so many seconds.
        """
        end = None if seconds is None else time.monotonic() + seconds
        pause = 0.1
        while (found := self.get(job)).state not in ENDS:
            if end is not None and time.monotonic() > end:
                raise ServerError(f"job {job} is {found.state} after {seconds:g} s")
            time.sleep(pause)
            pause = min(1.5 * pause, 2.0)
        return found
