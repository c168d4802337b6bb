"""Jobs that were handed in at a site: written down in their folders, so that anybody can come back to them."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from clew.core.files import write_text
from clew.errors import RunError
from clew.jobs import sites as sites
from clew.jobs.launchers.launcher import LaunchedJob
from clew.jobs.sites import BatchRequest, Site, site_launcher

_FILE = "job.json"


@dataclass(frozen=True)
class SubmittedJob:
    """A job, where it was handed in, and what it makes."""

    job: LaunchedJob
    site: str
    """The profile's name, or its file."""
    makes: str
    """The run, dataset or study that comes of it."""
    verb: str
    time: float
    after: tuple[str, ...] = ()
    """The numbers of jobs that must have ended well before."""

    @property
    def batch(self) -> sites.SiteLauncher:
        """Who looks after it."""
        return site_launcher(sites.load_site(self.site))


def submit(
    site: str | Site,
    arguments: Sequence[str],
    *,
    needs: BatchRequest,
    folder: Path,
    makes: str | Path = "",
    verb: str = "",
) -> SubmittedJob:
    """Hand `clew ARGUMENTS` in at a site and write it down in `folder`, which is made.

    Jobs that `needs` names in `after` may be numbers, or folders of what those jobs make.

    Raises:
        ConfigError: no such site, or it cannot give that much.
        RunError: it was not taken.
    """
    there = site if isinstance(site, Site) else sites.load_site(site)
    waits = needs.model_copy(update={"after": tuple(job_number(each) for each in needs.after)})
    job = site_launcher(there, waits).start(arguments, folder=folder)
    name = site if isinstance(site, str) else there.name
    sent = SubmittedJob(
        job, str(Path(name).absolute()) if name.endswith(".yaml") else name, str(makes), verb, time.time(), waits.after
    )
    told = {**asdict(sent), "host": socket.gethostname(), "arguments": list(arguments)}
    write_text(Path(job.folder) / _FILE, json.dumps(told, indent=1) + "\n")
    return sent


def folder_for(makes: Path) -> Path:
    """A free folder for the job that makes a run, a dataset or a study: beside it, under `jobs`."""
    first = makes.parent / "jobs" / makes.name
    free = first
    while free.exists():
        free = free.with_name(f"{free.name}+")
    return free


def find_submitted(name: str | Path) -> SubmittedJob:
    """By the folder of the job, or of what it makes.

    Raises:
        RunError: there is none.
    """
    path = Path(name)
    beside = [each for each in path.parent.glob(f"jobs/{path.name}*") if each.name.rstrip("+") == path.name]
    newest_first = sorted(beside, key=lambda each: len(each.name), reverse=True)
    folder = next((each for each in (path, *newest_first) if (each / _FILE).is_file()), None)
    if folder is None:
        raise RunError(f"{name}: no job was handed in for it; `clew site jobs` shows those there are")
    return read(folder)


def read(folder: Path) -> SubmittedJob:
    """What a job's folder says."""
    told: dict[str, Any] = json.loads((folder / _FILE).read_text())
    after = tuple(told.get("after", ()))
    return SubmittedJob(LaunchedJob(**told["job"]), told["site"], told["makes"], told["verb"], told["time"], after)


def submitted_under(root: Path) -> list[SubmittedJob]:
    """Every job that was handed in for something under a folder, the oldest first."""
    files = [path for path in root.glob(f"**/jobs/*/{_FILE}") if '"verb"' in path.read_text()]
    return sorted((read(path.parent) for path in files), key=lambda sent: sent.time)


def job_number(name: str) -> str:
    """What a scheduler calls a job: its number, given as it is or by a folder."""
    return name if name.isdecimal() else find_submitted(name).job.id
