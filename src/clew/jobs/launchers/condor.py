"""Jobs by HTCondor: condor_submit, condor_q and condor_rm.

Nothing here could run it yet: its files are compared with what they should be, and no more.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from clew.core.files import write_text
from clew.errors import ConfigError, RunError
from clew.jobs import batch_script
from clew.jobs.launchers.launcher import JobState, LaunchedJob, Slot
from clew.jobs.launchers.local import ended_as
from clew.jobs.launchers.slurm_queue import call, last_line
from clew.jobs.sites import BatchRequest, Site

_STATES: dict[int, JobState] = {1: "waiting", 2: "running", 3: "cancelled", 4: "finished", 5: "waiting", 6: "running"}
"""Of `JobStatus`: idle, running, removed, completed, held, moving output."""


class CondorLauncher:
    """A launcher whose jobs go to a pool, each on one machine."""

    def __init__(self, site: Site | None = None, needs: BatchRequest | None = None) -> None:
        self.site = site or Site(name="condor", scheduler="condor")
        self.needs = needs or BatchRequest()

    def start(self, arguments: Sequence[str], *, folder: Path, room: Slot | None = None) -> LaunchedJob:
        place = folder.absolute()
        text, body = self.script(list(arguments), place), self.executable(arguments, place)
        place.mkdir(parents=True)
        write_text(place / "job.sub", text)
        write_text(place / "job.sh", body)
        (place / "job.sh").chmod(0o755)
        done = call(["condor_submit", "-terse", str(place / "job.sub")])
        if done.returncode:
            shutil.rmtree(place)
            raise RunError(f"{self.site.name}: HTCondor rejected the job: {last_line(done.stderr)}")
        return LaunchedJob("condor", done.stdout.split()[0].partition(".")[0], str(place))

    def script(self, arguments: list[str], folder: Path) -> str:
        """The submit file."""
        needs = self.needs.at(self.site)
        if needs.after:
            raise ConfigError("HTCondor has no dependencies without DAGMan: hand jobs in when those before have ended")
        if (needs.nodes or 1) > 1:
            raise ConfigError("clew's jobs for HTCondor run on one machine each; leave out --nodes")
        log = "log.txt" if needs.array is None else "log-$(Process).txt"
        told: dict[str, object] = {
            "universe": "vanilla",
            "executable": folder / "job.sh",
            "arguments": "$(Process)",
            "initialdir": Path.cwd(),
            "output": folder / log,
            "error": folder / log,
            "log": folder / "condor.log",
            "getenv": "True",
            "request_cpus": needs.ranks * (needs.cpus or 1),
            "request_gpus": needs.gpus or None,
            "request_memory": needs.memory,
            "accounting_group": self.site.account,
            "+MaxRuntime": f"{needs.wall_time:.0f}",
            "kill_sig": "SIGTERM",
            "job_max_vacate_time": f"{batch_script.grace(self.site, needs.wall_time or 0):.0f}",
            "on_exit_remove": "(ExitBySignal == False) && (ExitCode != 75)" if needs.requeue else None,
        }
        lines = [f"{name} = {value}" for name, value in told.items() if value is not None]
        return "\n".join([*lines, *self.site.directives, f"queue {needs.array or 1}", ""])

    def executable(self, arguments: Sequence[str], folder: Path) -> str:
        """What the nodes run."""
        needs = self.needs.at(self.site)
        many = ["--workers", str(needs.ranks)] if needs.ranks > 1 else []
        return batch_script.condor(self.site, needs, [*arguments, *many], str(folder))

    def state(self, job: LaunchedJob) -> JobState:
        asked = self._rows(job)
        if asked is None:
            return ended_as(Path(job.folder)) or "waiting"
        states = [_STATES.get(int(row.get("JobStatus", 0)), "running") for row in asked]
        for state in ("running", "waiting"):
            if state in states:
                return state
        known = ended_as(Path(job.folder))
        return known or ("cancelled" if _removed(job) else "lost")

    def _rows(self, job: LaunchedJob) -> list[dict[str, int]] | None:
        """What is in the queue of it; None where HTCondor does not answer."""
        done = call(["condor_q", "-json", job.id])
        if done.returncode:
            return None
        return list(json.loads(done.stdout)) if done.stdout.strip() else []

    def explain(self, job: LaunchedJob) -> str:
        rows = self._rows(job)
        if rows is None:
            return "HTCondor does not answer"
        held = [str(row["HoldReason"]) for row in rows if "HoldReason" in row]
        return f"held: {held[0]}" if held else "cancelled at the scheduler" if not rows and _removed(job) else ""

    def stop(self, job: LaunchedJob) -> None:
        write_text(Path(job.folder) / "stop", "")
        call(["condor_rm", job.id])  # it gets SIGTERM, and its time to write a checkpoint

    def kill(self, job: LaunchedJob) -> None:
        call(["condor_rm", job.id])

    def problems(self) -> list[str]:
        done = call(["condor_q", "-totals"])
        return [last_line(done.stderr)] if done.returncode else []


def _removed(job: LaunchedJob) -> bool:
    """Whether HTCondor's own log of the job says that it was removed (event 009)."""
    log = Path(job.folder) / "condor.log"
    return log.exists() and re.search(r"^009 ", log.read_text(), flags=re.MULTILINE) is not None
