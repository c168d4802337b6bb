"""Jobs by Slurm: sbatch, squeue, scontrol and scancel, and sacct where there is accounting."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from clew.core.files import write_text
from clew.errors import RunError
from clew.jobs import batch_script
from clew.jobs.launchers.launcher import JobState, LaunchedJob, Slot
from clew.jobs.launchers.local import ended_as, exit_file
from clew.jobs.launchers.slurm_queue import (
    OVER_MEMORY,
    STATES,
    SlurmQueue,
    SlurmRow,
    accounted,
    call,
    last_line,
    over_memory,
)
from clew.jobs.sites import BatchRequest, Site

FULL = ("temporarily unable to accept job", "job submit limit", "Resource temporarily unavailable", "MaxSubmitJob")
"""What sbatch says where it would take the job later."""
SILENT = ("Unable to contact", "did not answer")
_table = SlurmQueue()
_missed: dict[str, int] = {}
"""How often in a row Slurm did not know a job: one that was just handed in may be a moment late."""
_PATIENCE = 3
_ORDER: tuple[JobState, ...] = ("running", "waiting", "cancelled", "lost", "failed", "finished")
"""Of an array: what the whole is when some are this."""


class SlurmLauncher:
    """A launcher whose jobs go to a site's queue. Ranks are started by srun, by the MPI of the site."""

    def __init__(self, site: Site | None = None, needs: BatchRequest | None = None) -> None:
        self.site = site or Site(name="slurm", scheduler="slurm")
        self.needs = needs or BatchRequest()

    def start(self, arguments: Sequence[str], *, folder: Path, room: Slot | None = None) -> LaunchedJob:
        place = folder.absolute()
        text = self.script(list(arguments), place, room)
        try:
            place.mkdir(parents=True)
        except OSError as error:
            raise RunError(f"{folder}: cannot start a job there ({error.strerror})") from error
        write_text(place / "job.sh", text)
        done = call(["sbatch", "--parsable", str(place / "job.sh")], most=20)
        if done.returncode:
            shutil.rmtree(place)
            raise RunError(self.rejected(done.stderr))
        _table.asked = float("-inf")
        return LaunchedJob("slurm", done.stdout.strip().partition(";")[0], str(place))

    def script(self, arguments: list[str], folder: Path, room: Slot | None = None) -> str:
        """What sbatch is given."""
        needs = self.needs
        if room is not None and room.cores:
            needs = needs.model_copy(update={"cpus": len(room.cores)})
        if room is not None and room.devices is not None:
            needs = needs.model_copy(update={"gpus": len(room.devices)})
        return batch_script.slurm(self.site, needs.at(self.site), arguments, str(folder))

    def rejected(self, told: str) -> str:
        """What sbatch said, in one line."""
        if any(words in told for words in FULL):
            return f"{self.site.name}: the queue is full ({last_line(told)}); wait until jobs have ended, and try again"
        if any(words in told for words in SILENT):
            return f"{self.site.name}: Slurm's controller does not answer ({last_line(told)}); try again later"
        lines = [line.partition("error: ")[2] or line for line in told.strip().splitlines()]
        kept = [line for line in lines if line and line != "Batch job submission failed: Unspecified error"]
        words = "; ".join(kept) or "it said nothing"
        return f"{self.site.name}: Slurm rejected the job: {words}{self._hint}"

    @property
    def _hint(self) -> str:
        return f" (see `clew site check {self.site.name}`)"

    def state(self, job: LaunchedJob) -> JobState:
        known = ended_as(Path(job.folder))
        single = exit_file(Path(job.folder)).exists()
        if single and known == "finished":
            return known
        rows = self._rows(job, hurry=single)
        states = {STATES.get(row.state, "running") for row in rows}
        if known is not None and (not rows or (single and _table.silent)):
            return known
        for state in _ORDER:
            if state in states:
                return _settled(state, known, asked=_asked(job))
        return self._unknown(job)

    def _unknown(self, job: LaunchedJob) -> JobState:
        if _table.silent:
            return "waiting"
        _missed[job.id] = _missed.get(job.id, 0) + 1
        if _missed[job.id] < _PATIENCE:
            _table.asked = float("-inf")
            return "waiting"
        return ended_as(Path(job.folder)) or "lost"

    def _rows(self, job: LaunchedJob, *, hurry: bool = False) -> list[SlurmRow]:
        rows = _table.of(job.id, min(self.site.poll_seconds, 1) if hurry else self.site.poll_seconds)
        if rows:
            _missed.pop(job.id, None)
        return rows or ([] if _table.silent else accounted(job.id))

    def explain(self, job: LaunchedJob) -> str:
        rows = self._rows(job)
        if _table.silent:
            return f"Slurm does not answer: {_table.silent}"
        if not rows and self.state(job) == "lost":
            return "Slurm does not know it any more, and it left no exit code"
        words = list(dict.fromkeys(filter(None, (row.words() for row in rows))))
        if not words and over_memory(Path(job.folder) / "log.txt"):
            return OVER_MEMORY
        return "; ".join(words)

    def stop(self, job: LaunchedJob) -> None:
        write_text(Path(job.folder) / "stop", "")
        call(["scancel", "--state=PENDING", job.id])
        call(["scancel", "--state=RUNNING", "--signal=TERM", job.id])
        _table.asked = float("-inf")

    def kill(self, job: LaunchedJob) -> None:
        call(["scancel", job.id])
        _table.asked = float("-inf")

    def problems(self) -> list[str]:
        done = call(["scontrol", "ping"], most=20)
        if done.returncode or " UP" not in done.stdout:
            return [last_line(done.stderr or done.stdout)]
        trial = ["sbatch", "--test-only", *batch_script.directives(self.site, self.needs, "/tmp"), "--wrap", "true"]
        done = call([word for word in trial if not word.startswith("--kill-on-invalid-dep")], most=20)
        return [self.rejected(done.stderr).removesuffix(self._hint)] if done.returncode else []


def _asked(job: LaunchedJob) -> bool:
    """Whether it was us who had it stopped."""
    return (Path(job.folder) / "stop").exists()


def _settled(state: JobState, known: JobState | None, *, asked: bool) -> JobState:
    """What Slurm says, and what the job said itself: which knows more, but not whether it was cancelled."""
    if state in ("running", "waiting"):
        return state
    if state == "cancelled":
        return "stopped" if asked else "cancelled"
    return state if state == "lost" and known == "failed" else known or state
