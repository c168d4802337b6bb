"""`clew stop`, `clew follow` and `clew logs`, for runs on this machine, jobs of sites and jobs of a server."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from clew.cli.jobs.agent import Server
from clew.cli.jobs.work_reference import ServerJob, Work, find_work
from clew.cli.options import bold, console
from clew.errors import ConfigError, RunError

if TYPE_CHECKING:
    from clew.jobs.submitted import SubmittedJob
    from clew.runs import Run

_PAUSE = 0.5


def stop(
    work: Annotated[
        list[str],
        typer.Argument(
            metavar="WORK...", help="Runs' folders, folders that sites' jobs make, or a server's job numbers."
        ),
    ],
    now: Annotated[bool, typer.Option("--now", help="Kill it: no checkpoint is written.")] = False,
    server: Server = None,
) -> None:
    """Stop runs and jobs: what runs writes a checkpoint and ends, what waits never starts.

    \b
    Examples:
      clew stop runs/tracking-001
      clew stop runs/tracking-001 --now
      clew stop 12 13

    `clew train --resume` continues a run, `clew requeue` a server's job.
    """
    from clew.runs import Run

    for name in work:
        target = find_work(name)
        if isinstance(target, ServerJob):
            _stop_server_job(target, server, now=now)
        elif isinstance(target, Run):
            _stop_run(target, now=now)
        else:
            _stop_submitted(target, now=now)


def follow(work: Work, server: Server = None) -> None:
    """Watch a run or a job until it ends; Ctrl-C leaves it running. A job's exit code is that of this command.

    \b
    Examples:
      clew follow runs/tracking-001
      clew follow 12
    """
    from clew.cli.jobs.submitted import watch_submitted
    from clew.runs import Run

    target = find_work(work)
    if isinstance(target, ServerJob):
        _follow_server_job(target, server)
    elif isinstance(target, Run):
        _follow_run(target)
    else:
        watch_submitted(target)


def logs(
    work: Work,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue until it ends.")] = False,
    attempt: Annotated[int | None, typer.Option(min=1, help="Of a server's job: an earlier attempt.")] = None,
    server: Server = None,
) -> None:
    """Print what a job or a run has printed.

    \b
    Examples:
      clew logs 12
      clew logs 12 --follow
      clew logs 12 --attempt 1
      clew logs runs/tracking-001
    """
    from clew.runs import Run

    target = find_work(work)
    if isinstance(target, ServerJob):
        _server_log(target, server, follow=follow, attempt=attempt)
        return
    if attempt is not None:
        raise ConfigError("--attempt is for jobs of a server")
    if isinstance(target, Run):
        _print_run_log(target, follow=follow)
    else:
        _print_submitted_log(target, follow=follow)


def _stop_server_job(job: ServerJob, server: str | None, *, now: bool) -> None:
    from clew.client.client import Client

    if now:
        raise ConfigError("--now: a server's job is asked to end and killed after a while; leave --now out")
    with Client(server) as client:
        state = client.jobs.cancel(job.number)
        console.print(f"job {job.number}: {'will end' if state.cancelling else state.state}")


def _stop_run(run: Run, *, now: bool) -> None:
    start = run.last("start")
    if run.state != "running" or start is None:
        raise RunError(f"{run.path} is {run.state}; there is nothing to stop")
    if start["host"] != socket.gethostname():
        raise RunError(f"{run.path} trains on {start['host']}; stop it there")
    os.kill(start["pid"], signal.SIGKILL if now else signal.SIGTERM)  # one rank is enough: all stop at the next step
    while run.state == "running":
        time.sleep(0.1)
    console.print(f"{bold(run.path)} {run.state}")


def _stop_submitted(submitted: SubmittedJob, *, now: bool) -> None:
    from clew.jobs.launchers.launcher import watch

    launcher, job = submitted.launcher, submitted.job
    (launcher.kill if now else launcher.stop)(job)
    for state in watch(launcher, job, pause=_PAUSE):
        console.print(f"job {job.id} {state} [dim]{escape(launcher.explain(job))}[/]")


def _follow_server_job(job: ServerJob, server: str | None) -> None:
    from clew.cli.jobs.jobs import exit_code, watch_job
    from clew.client.client import Client

    with Client(server) as client:
        raise typer.Exit(exit_code(watch_job(client, job.number, log=True)))


def _follow_run(run: Run) -> None:
    from clew.cli.runs.follow import following
    from clew.runs.summary import summarize

    with following() as started:
        started(run)
        while run.state in ("created", "running"):
            time.sleep(_PAUSE)
    summary = summarize(run)
    console.print(f"{bold(run.path)} {summary.state} {escape(summary.message)}")


def _server_log(job: ServerJob, server: str | None, *, follow: bool, attempt: int | None) -> None:
    from clew.client.client import Client

    if follow:
        _follow_server_job(job, server)
        return
    with Client(server) as client:
        for text in client.jobs.log(job.number, attempt=attempt):
            console.out(text, end="", highlight=False)


def _print_run_log(run: Run, *, follow: bool) -> None:
    """Print the log of the job of a run, or else the lines that the run recorded."""
    from clew.runs.console_log import ConsoleReader

    def running() -> bool:
        return run.state in ("created", "running")

    folders = run.job_folder.parent.glob(f"{run.job_folder.name}*")
    logs = [folder / "log.txt" for folder in sorted(folders) if folder.name.rstrip("+") == run.job_folder.name]
    if present := [log for log in logs if log.exists()]:
        _print_log(present[-1:], follow=follow, running=running)
        return
    reader = ConsoleReader(run)
    if not reader.exists() and not (follow and running()):
        raise RunError(f"{run.path} has no log: it printed nothing")
    while True:
        ended = not follow or not running()
        console.out(reader.new_text(), end="", highlight=False)
        if ended:
            return
        time.sleep(_PAUSE)


def _print_submitted_log(submitted: SubmittedJob, *, follow: bool) -> None:
    from clew.jobs.launchers.launcher import END_STATES

    launcher, job = submitted.launcher, submitted.job
    launcher.state(job)  # a scheduler elsewhere appends what it reports to the log
    logs = [job.log, *sorted(Path(job.folder).glob("log-*.txt"))]
    _print_log(logs, follow=follow, running=lambda: launcher.state(job) not in END_STATES)


def _print_log(logs: Iterable[Path], *, follow: bool, running: Callable[[], bool]) -> None:
    """Print log files; with `follow` also what is appended until the job ends."""
    offsets = dict.fromkeys(logs, 0)
    while True:
        ended = not follow or not running()
        for log in offsets:
            if log.exists():
                with log.open("rb") as stream:
                    stream.seek(offsets[log])
                    data = stream.read()
                offsets[log] += len(data)
                console.out(data.decode(errors="replace"), end="", highlight=False)
        if ended:
            return
        time.sleep(_PAUSE)
