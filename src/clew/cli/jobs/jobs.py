"""`clew jobs`, `retry` and `requeue`."""

from __future__ import annotations

import datetime
import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from clew.cli.jobs.agent import Server
from clew.cli.jobs.submitted import write_submitted
from clew.cli.listing import ColumnsOption, JsonOption, SortOption, print_list
from clew.cli.options import bold, console
from clew.cli.text_table import Column, line_width, write
from clew.errors import ConfigError, nearest

if TYPE_CHECKING:
    from clew.client.client import Client
    from clew.client.job import Job, JobDetail, Resources, State
    from clew.jobs.submitted import SubmittedJob

_STATES = ("waiting", "claimed", "running", "done", "failed", "cancelled", "lost")
_DEPTH = 2
"""Levels of folders in which `clew jobs` looks for jobs of sites; `clew site jobs` looks in all."""
Numbers = Annotated[list[int], typer.Argument(metavar="JOB...", min=1, help="Numbers of the jobs.")]


def jobs(
    number: Annotated[str, typer.Argument(metavar="JOB", help="Show all facts about this job.")] = "",
    state: Annotated[
        list[str] | None, typer.Option(help=f"Only jobs in this state: {', '.join(_STATES)}. Repeatable.")
    ] = None,
    kind: Annotated[str | None, typer.Option(help="Only train, tune, prepare, evaluate or bench.")] = None,
    owner: Annotated[str | None, typer.Option(help="Only jobs of this user.")] = None,
    study: Annotated[int | None, typer.Option(min=1, help="The trials of this study that are jobs.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Number of jobs, the newest first.")] = 30,
    agents: Annotated[bool, typer.Option("--agents", help="List the agents and their resources instead.")] = False,
    sort: SortOption = "",
    columns: ColumnsOption = "",
    as_json: JsonOption = False,
    server: Server = None,
) -> None:
    """List the jobs of a server, and those submitted to sites from this folder; or show one job of the server.

    \b
    Examples:
      clew jobs
      clew jobs --state running --state waiting
      clew jobs 12
      clew jobs --study 3
      clew jobs --agents
      clew jobs --sort -priority --columns id,name,state,priority
    """
    from clew.client.client import Client
    from clew.client.credentials import credentials

    job = _job_number(number)
    for each in state or ():
        if each not in _STATES:
            raise ConfigError(f"--state {each}: no such state{nearest(each, _STATES)}")
    selects = any(value is not None for value in (job, state, kind, owner, server))
    site_jobs = [] if selects or agents or as_json else _submitted_here()
    if site_jobs and credentials() is None:
        write_submitted(site_jobs)
        return
    with Client(server) as client:
        if agents:
            _show_agents(client, as_json)
        elif job is not None:
            _show_job(client, job, as_json)
        else:
            matching = client.jobs.list(state=cast("list[State]", state or []), kind=kind, owner=owner, study=study)
            _show_jobs(list(itertools.islice(matching, limit)), sort, columns, as_json)
    if site_jobs:
        console.print("\nsubmitted to sites from this folder:")
        write_submitted(site_jobs)


def _submitted_here() -> list[SubmittedJob]:
    from clew.jobs.submitted import submitted_under

    return submitted_under(Path(), depth=_DEPTH)


def retry(jobs: Numbers, server: Server = None) -> None:
    """Submit jobs again as new jobs, which start from the beginning.

    \b
    Example:
      clew retry 12
    """
    from clew.client.client import Client

    with Client(server) as client:
        for number in jobs:
            console.print(f"job {bold(client.jobs.retry(number).id)} repeats job {number}")


def requeue(jobs: Numbers, server: Server = None) -> None:
    """Continue jobs that ended early from their last checkpoint.

    \b
    Example:
      clew requeue 12
    """
    from clew.client.client import Client

    with Client(server) as client:
        for number in jobs:
            client.jobs.requeue(number)
            console.print(f"job {number}: waiting; it will continue from its last checkpoint")


def watch_job(client: Client, number: int, *, log: bool) -> Job:
    """Wait until a job ends and print its states and, with `log`, its output."""
    from clew.client.job import Job

    last: Job | None = None
    for each in client.jobs.follow(number):
        if isinstance(each, Job):
            last = each
            console.print(f"[dim]job {number}: {state_in_words(each)}[/]", highlight=False)
        elif log:
            console.out(each, end="", highlight=False)
    return client.jobs.get(number) if last is None else last


def state_in_words(job: Job) -> str:
    """The state of a job with its agent and the reason."""
    where = f" on {job.agent}" if job.agent and job.state in ("claimed", "running") else ""
    return f"{job.state}{where}{': ' + job.reason if job.reason else ''}"


def waiting_reason(client: Client, job: Job) -> str:
    """Why a waiting job does not start: no agent can run it, or the reason of the server; empty if one can."""
    allowed = [each for each in client.agents() if each.owner == job.owner or (job.group and each.group == job.group)]
    alive = [each for each in allowed if each.alive]
    if job.state != "waiting" or any(job.resources.fits(each.slots) for each in alive):
        return job.reason if job.state == "waiting" else ""
    reason = "no agent that may run it has enough resources" if alive else "no agent that may run it is connected"
    if alive and job.resources.container and not any(each.slots.containers for each in alive):
        reason = "no agent that may run it can run container images (Apptainer, Singularity or Podman)"
    where = f" --on {job.resources.site}" if job.resources.site else ""
    if where and not any(each.slots.site == job.resources.site for each in alive):
        reason = f"no agent of {job.resources.site} that may run it is connected"
    return f"{reason}; start one with: clew agent{where}{f' --group {job.group}' if job.group else ''}"


def exit_code(job: Job) -> int:
    """The exit code of a job: its own, 128 plus the number of a signal, or 130 if it was cancelled."""
    if job.state == "done":
        return 0
    if job.state == "cancelled":
        return 130
    if job.exit_code is None or job.exit_code == 0:
        return 1
    return 128 - job.exit_code if job.exit_code < 0 else job.exit_code


def job_facts(job: JobDetail) -> list[tuple[str, str]]:
    """Facts about a job, as names and texts."""
    facts = [
        ("state", state_in_words(job)),
        ("owner", job.owner + (f" (group {job.group})" if job.group else "")),
        ("resources", resources_in_words(job.resources)),
        ("priority", str(job.priority)),
        ("attempt", f"{job.attempt} of {job.requeue + 1}"),
        ("agent", job.agent or ""),
        ("dataset", job.dataset or ""),
        ("study", str(job.study or "")),
        ("run", str(job.run or "")),
        ("stored at", job.stored or ("" if job.store is None else f"{job.store} (when it has succeeded)")),
        ("exit code", "" if job.exit_code is None else str(job.exit_code)),
        ("memory used", f"{job.peak_memory / 1e9:.2f} GB" if job.peak_memory else ""),
    ]
    return [(name, words) for name, words in facts if words]


def resources_in_words(resources: Resources) -> str:
    """The resources that a job requested, as totals."""

    def count(number: int, noun: str) -> str:
        return f"{number} {noun}{'s' if number > 1 else ''}"

    words = [count(resources.workers, "worker")] if resources.workers > 1 else []
    words.append(count(resources.total_cpus, "CPU"))
    words += [count(resources.total_gpus, "GPU")] if resources.gpus else []
    words += [f"{resources.total_memory / 1e9:.3g} GB"] if resources.total_memory else []
    words += [count(resources.nodes, "node")] if resources.nodes > 1 else []
    words += [f"{datetime.timedelta(seconds=round(resources.wall_time))} of wall time"] if resources.wall_time else []
    words += [f"in {resources.container}"] if resources.container else []
    return ", ".join([*words, *([f"at {resources.site}"] if resources.site else [])])


def _show_job(client: Client, number: int, as_json: bool) -> None:
    job = client.jobs.get(number)
    if as_json:
        events = [each.model_dump() for each in client.jobs.history(number)]
        typer.echo(json.dumps({**job.model_dump(mode="json"), "history": events}, indent=1))
        return
    console.print(f"job {bold(job.id)}: {job.kind} {bold(job.name)}")
    why = waiting_reason(client, job)
    for name, words in [*job_facts(job), *([("waits", why)] if why and why != job.reason else [])]:
        console.print(f"  {name:<12} {words}", markup=False)
    for each in client.jobs.history(number):
        console.print(f"  {_time(each.time)}  {each.kind:<10} {each.message}", markup=False)


def _show_jobs(jobs: list[Job], sort: str, columns: str, as_json: bool) -> None:
    if as_json or (jobs and (sort or columns)):
        rows = [each.model_dump(mode="json") for each in jobs]
        print_list(rows, ("id", "name", "kind", "state", "owner"), sort=sort, chosen=columns, as_json=as_json)
    elif not jobs:
        console.print("no jobs; submit one with: clew submit")
    else:
        write(_columns(jobs), width=line_width())


def _columns(jobs: list[Job]) -> list[Column]:
    return [
        Column("job", [str(each.id) for each in jobs], right=True),
        Column("name", [each.name for each in jobs]),
        Column("kind", [each.kind for each in jobs], rank=4),
        Column("state", [each.state for each in jobs]),
        Column("owner", [each.owner for each in jobs], rank=6),
        Column("agent", [each.agent or "" for each in jobs], rank=5),
        Column("run", [str(each.run or "") for each in jobs], rank=3, right=True),
        Column("since", [_time(each.ended or each.started or each.created) for each in jobs], rank=2),
        Column("why", [each.reason for each in jobs], rank=1, least=40),
    ]


def _job_number(text: str) -> int | None:
    """Return the number of a job; None for the list, which `clew jobs list` shows too."""
    if text in ("", "list"):
        return None
    if not text.isdecimal() or not int(text):
        raise ConfigError(f"clew jobs {text}: a job has a number, as in `clew jobs 12`; `clew jobs` lists all jobs")
    return int(text)


def _show_agents(client: Client, as_json: bool) -> None:
    agents = client.agents()
    if as_json:
        typer.echo(json.dumps([each.model_dump(mode="json") for each in agents], indent=1))
        return
    if not agents:
        console.print("no agents; start one with: clew agent")
        return

    def used(name: str) -> list[str]:
        return [f"{getattr(each.used, name) or 0 if each.used else 0}/{getattr(each.slots, name)}" for each in agents]

    memory = [((each.used.memory or 0) if each.used else 0, each.slots.memory) for each in agents]
    columns: list[Any] = [
        Column("agent", [each.name for each in agents]),
        Column("owner", [each.owner for each in agents], rank=3),
        Column("group", [each.group or "" for each in agents], rank=2),
        Column("seen", [_time(each.seen) if not each.alive else "now" for each in agents]),
        Column("jobs", [str(each.jobs) for each in agents], right=True),
        Column("CPUs", used("cpus"), right=True),
        Column("GPUs", used("gpus"), right=True),
        Column("GB", [f"{a / 1e9:.3g}/{b / 1e9:.3g}" for a, b in memory], rank=1, right=True),
    ]
    write(columns, width=line_width())


def _time(moment: float) -> str:
    return f"{datetime.datetime.fromtimestamp(moment):%Y-%m-%d %H:%M:%S}"
