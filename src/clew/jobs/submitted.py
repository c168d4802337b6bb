"""Jobs that were submitted to a site. Their folders describe them, so that any process can find them again."""

from __future__ import annotations

import json
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from clew.core.files import write_text
from clew.errors import RunError
from clew.jobs import sites as sites
from clew.jobs.launchers.launcher import LaunchedJob
from clew.jobs.sites import BatchRequest, Site, scheduler_at
from clew.jobs.task import Task

_FILE = "job.json"


@dataclass(frozen=True)
class JobOutput:
    """What a job makes."""

    path: str | Path = ""
    """The folder of the run, dataset or study."""
    verb: str = ""
    """The command of clew that makes it."""


@dataclass(frozen=True)
class SubmittedJob:
    """A job, the site it was submitted to, and what it makes."""

    job: LaunchedJob
    site: str
    """The profile's name, or its file."""
    output: str
    """The folder of the run, dataset or study that it makes."""
    verb: str
    time: float
    """When it was submitted, in seconds since 1970."""
    after: tuple[str, ...] = ()
    """The numbers of jobs that must have succeeded before."""

    @property
    def launcher(self) -> sites.SiteLauncher:
        """The launcher that supervises it."""
        return scheduler_at(sites.load_site(self.site))


def submit(
    site: str | Site, task: Task, *, request: BatchRequest, folder: Path, output: JobOutput | None = None
) -> SubmittedJob:
    """Submit a task to a site and describe it in `folder`, which is created.

    Args:
        site: The site, its name or its profile's file.
        task: What to run.
        request: What the job needs. Jobs in `after` may be numbers, or folders of what those jobs make.
        folder: The job's folder.
        output: What it makes.

    Raises:
        ConfigError: no such site, or it does not allow that much.
        RunError: the job was rejected.
    """
    profile = site if isinstance(site, Site) else sites.load_site(site)
    output = output or JobOutput()
    request = request.model_copy(update={"after": tuple(job_number(name) for name in request.after)})
    job = scheduler_at(profile, request).start(task, folder=folder)
    name = site if isinstance(site, str) else profile.name
    submitted = SubmittedJob(
        job=job,
        site=str(Path(name).absolute()) if name.endswith(".yaml") else name,
        output=str(output.path),
        verb=output.verb,
        time=time.time(),
        after=request.after,
    )
    data = {**asdict(submitted), "host": socket.gethostname()}
    write_text(Path(job.folder) / _FILE, json.dumps(data, indent=1) + "\n")
    return submitted


def free_job_folder(output: Path) -> Path:
    """A new folder for the job that makes a run, a dataset or a study: in `jobs`, next to its output."""
    folder = output.parent / "jobs" / output.name
    while folder.exists():
        folder = folder.with_name(f"{folder.name}+")
    return folder


def find_submitted(name: str | Path) -> SubmittedJob:
    """A job by its folder, or by the folder of what it makes.

    Raises:
        RunError: there is none.
    """
    path = Path(name)
    candidates = [folder for folder in path.parent.glob(f"jobs/{path.name}*") if folder.name.rstrip("+") == path.name]
    newest_first = sorted(candidates, key=lambda folder: len(folder.name), reverse=True)
    match = next((folder for folder in (path, *newest_first) if (folder / _FILE).is_file()), None)
    if match is None:
        raise RunError(f"{name}: no job was submitted for it; `clew site jobs` lists all")
    return read_submitted(match)


def read_submitted(folder: Path) -> SubmittedJob:
    """The job that a job's folder describes."""
    data: dict[str, Any] = json.loads((folder / _FILE).read_text())
    return SubmittedJob(
        job=LaunchedJob(**data["job"]),
        site=data["site"],
        output=data["output"],
        verb=data["verb"],
        time=data["time"],
        after=tuple(data.get("after", ())),
    )


def submitted_under(root: Path, *, depth: int | None = None) -> list[SubmittedJob]:
    """Every job that was submitted for something under a folder, the oldest first.

    Args:
        root: The folder to search.
        depth: How many levels of folders to search; default: all.
    """
    prefixes = ["**/"] if depth is None else ["*/" * level for level in range(depth + 1)]
    paths = [path for prefix in prefixes for path in root.glob(f"{prefix}jobs/*/{_FILE}")]
    files = [path for path in paths if '"verb"' in path.read_text()]
    return sorted((read_submitted(path.parent) for path in files), key=lambda job: job.time)


def job_number(name: str) -> str:
    """What a scheduler calls a job, from its number or from a folder."""
    return name if name.isdecimal() else find_submitted(name).job.id
