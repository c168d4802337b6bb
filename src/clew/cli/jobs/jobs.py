"""`clew jobs`, `retry` and `requeue`."""

from __future__ import annotations

import datetime
import itertools
import json
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from clew.cli.jobs.agent import Server
from clew.cli.options import bold, console
from clew.cli.text_table import Column, room, write
from clew.errors import ConfigError, nearest

if TYPE_CHECKING:
    from clew.client.client import Client
    from clew.client.job import Job, JobDetail, Resources, State

_STATES = ("waiting", "claimed", "running", "done", "failed", "cancelled", "lost")
Numbers = Annotated[list[int], typer.Argument(metavar="JOB...", min=1, help="Their numbers.")]


def jobs(
    job: Annotated[int | None, typer.Argument(metavar="JOB", min=1, help="Tell all about this one.")] = None,
    state: Annotated[list[str] | None, typer.Option(help=f"Only {', '.join(_STATES)}. Repeatable.")] = None,
    kind: Annotated[str | None, typer.Option(help="Only train, tune, prepare or evaluate.")] = None,
    owner: Annotated[str | None, typer.Option(help="Only this person's.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many, the newest first.")] = 30,
    agents: Annotated[bool, typer.Option("--agents", help="The agents instead, and what they have left.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For other programs: all that is known of each.")] = False,
    server: Server = None,
) -> None:
    """The jobs of a server, or everything about one.

    \b
    Examples:
      clew jobs
      clew jobs --state running --state waiting
      clew jobs 12
      clew jobs --agents
    """
    from clew.client.client import Client

    for each in state or ():
        if each not in _STATES:
            raise ConfigError(f"--state {each}: there is no such state{nearest(each, _STATES)}")
    with Client(server) as client:
        if agents:
            _agents(client, as_json)
        elif job is not None:
            _tell(client, job, as_json)
        else:
            asked = client.jobs.list(state=cast("list[State]", state or []), kind=kind, owner=owner)
            _list(list(itertools.islice(asked, limit)), as_json)


def retry(jobs: Numbers, server: Server = None) -> None:
    """New jobs like others, from the start.

    \b
    Example:
      clew retry 12
    """
    from clew.client.client import Client

    with Client(server) as client:
        for number in jobs:
            console.print(f"job {bold(client.jobs.retry(number).id)} is job {number} again")


def requeue(jobs: Numbers, server: Server = None) -> None:
    """Have jobs that ended early go on where they stopped.

    \b
    Example:
      clew requeue 12
    """
    from clew.client.client import Client

    with Client(server) as client:
        for number in jobs:
            client.jobs.requeue(number)
            console.print(f"job {number}: waiting; it goes on where it stopped")


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
    """A job's state in a few words."""
    where = f" on {job.agent}" if job.agent and job.state in ("claimed", "running") else ""
    return f"{job.state}{where}{': ' + job.reason if job.reason else ''}"


def waiting_reason(client: Client, job: Job) -> str:
    """Why a job waits, where nothing will change that by itself; else nothing."""
    mine = [each for each in client.agents() if each.owner == job.owner or (job.group and each.group == job.group)]
    there = [each for each in mine if each.alive]
    if job.state != "waiting" or any(job.resources.fits(each.slots) for each in there):
        return ""
    told = "no agent that may run it has so much to give" if there else "no agent that may run it is there"
    where = f" --on {job.resources.site}" if job.resources.site else ""
    if where and not any(each.slots.site == job.resources.site for each in there):
        told = f"no agent of {job.resources.site} that may run it is there"
    return f"{told}; start one with: clew agent{where}{f' --group {job.group}' if job.group else ''}"


def exit_code(job: Job) -> int:
    """The exit code that stands for a job's: its own, 128 and the signal's number, 130 where it was cancelled."""
    if job.state == "done":
        return 0
    if job.state == "cancelled":
        return 130
    if job.exit_code is None or job.exit_code == 0:
        return 1
    return 128 - job.exit_code if job.exit_code < 0 else job.exit_code


def job_facts(job: JobDetail) -> list[tuple[str, str]]:
    """What is worth telling of a job, as names and words."""
    facts = [
        ("state", state_in_words(job)),
        ("owner", job.owner + (f" (group {job.group})" if job.group else "")),
        ("resources", resources_in_words(job.resources)),
        ("priority", str(job.priority)),
        ("attempt", f"{job.attempt} of {job.requeue + 1}"),
        ("agent", job.agent or ""),
        ("dataset", job.dataset or ""),
        ("run", str(job.run or "")),
        ("exit code", "" if job.exit_code is None else str(job.exit_code)),
        ("memory used", f"{job.peak_memory / 1e9:.2f} GB" if job.peak_memory else ""),
    ]
    return [(name, words) for name, words in facts if words]


def resources_in_words(resources: Resources) -> str:
    """What a job requested, in totals."""

    def count(number: int, noun: str) -> str:
        return f"{number} {noun}{'s' if number > 1 else ''}"

    words = [count(resources.workers, "worker")] if resources.workers > 1 else []
    words.append(count(resources.total_cpus, "CPU"))
    words += [count(resources.total_gpus, "GPU")] if resources.gpus else []
    words += [f"{resources.total_memory / 1e9:.3g} GB"] if resources.total_memory else []
    words += [count(resources.nodes, "node")] if resources.nodes > 1 else []
    words += [f"{resources.wall_time:g} s of wall time"] if resources.wall_time else []
    return ", ".join([*words, *([f"at {resources.site}"] if resources.site else [])])


def _tell(client: Client, number: int, as_json: bool) -> None:
    job = client.jobs.get(number)
    if as_json:
        events = [each.model_dump() for each in client.jobs.history(number)]
        typer.echo(json.dumps({**job.model_dump(mode="json"), "history": events}, indent=1))
        return
    console.print(f"job {bold(job.id)}: {job.kind} {bold(job.name)}")
    why = waiting_reason(client, job)
    for name, words in [*job_facts(job), *([("waits", why)] if why else [])]:
        console.print(f"  {name:<12} {words}", markup=False)
    for each in client.jobs.history(number):
        console.print(f"  {_time(each.time)}  {each.kind:<10} {each.message}", markup=False)


def _list(found: list[Job], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps([each.model_dump(mode="json") for each in found], indent=1))
    elif not found:
        console.print("no jobs; submit one with: clew submit")
    else:
        write(_columns(found), width=room())


def _columns(found: list[Job]) -> list[Column]:
    return [
        Column("job", [str(each.id) for each in found], right=True),
        Column("name", [each.name for each in found]),
        Column("kind", [each.kind for each in found], rank=4),
        Column("state", [each.state for each in found]),
        Column("owner", [each.owner for each in found], rank=6),
        Column("agent", [each.agent or "" for each in found], rank=5),
        Column("run", [str(each.run or "") for each in found], rank=3, right=True),
        Column("since", [_time(each.ended or each.started or each.created) for each in found], rank=2),
        Column("why", [each.reason for each in found], rank=1),
    ]


def _agents(client: Client, as_json: bool) -> None:
    found = client.agents()
    if as_json:
        typer.echo(json.dumps([each.model_dump(mode="json") for each in found], indent=1))
        return
    if not found:
        console.print("no agents; start one with: clew agent")
        return

    def used(name: str) -> list[str]:
        return [f"{getattr(each.used, name) or 0 if each.used else 0}/{getattr(each.slots, name)}" for each in found]

    memory = [((each.used.memory or 0) if each.used else 0, each.slots.memory) for each in found]
    columns: list[Any] = [
        Column("agent", [each.name for each in found]),
        Column("owner", [each.owner for each in found], rank=3),
        Column("group", [each.group or "" for each in found], rank=2),
        Column("seen", [_time(each.seen) if not each.alive else "now" for each in found]),
        Column("jobs", [str(each.jobs) for each in found], right=True),
        Column("CPUs", used("cpus"), right=True),
        Column("GPUs", used("gpus"), right=True),
        Column("GB", [f"{a / 1e9:.3g}/{b / 1e9:.3g}" for a, b in memory], rank=1, right=True),
    ]
    write(columns, width=room())


def _time(moment: float) -> str:
    return f"{datetime.datetime.fromtimestamp(moment):%Y-%m-%d %H:%M:%S}"
