"""Handing a job in at a site, and watching it."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.markup import escape

from clew.cli.options import bold, console, program
from clew.errors import JobError

if TYPE_CHECKING:
    from clew.cli.jobs.on_site import SiteOptions, SiteWork
    from clew.jobs.launchers.launcher import JobState
    from clew.jobs.submitted import SubmittedJob

_PAUSE = 0.5


def hand_in(asked: SiteOptions, work: SiteWork, arguments: list[str]) -> None:
    """Submit, say so, and watch it where that is wanted."""
    from clew.jobs.sites import site_launcher
    from clew.jobs.submitted import folder_for, submit

    folder, needs = folder_for(work.makes), asked.needs(work)
    command = work.command or [*arguments, *work.added]
    if asked.given["dry_run"]:
        typer.echo(site_launcher(asked.site, needs).script(command, folder.absolute()), nl=False)
        return
    jobs = [submit(asked.name, command, needs=needs, folder=folder, makes=work.makes, verb=work.verb)]
    if work.then is not None:
        last = needs.model_copy(update={"array": None, "after": (jobs[0].job.id,)})
        jobs.append(
            submit(asked.name, work.then, needs=last, folder=folder_for(work.makes), makes=work.makes, verb=work.verb)
        )
    for sent in jobs:
        log = sent.job.log.with_name("log-*.txt") if needs.array and sent is jobs[0] else sent.job.log
        console.print(f"job {bold(sent.job.id)} at {bold(sent.site)} makes {bold(sent.makes)}; it prints to {log}")
    follow = asked.given["follow"]
    if follow if follow is not None else console.is_terminal:
        watch(*jobs)
    else:
        console.print(f"[dim]watch it:[/] {program()} site follow {jobs[-1].job.folder}")


def watch(*jobs: SubmittedJob) -> None:
    """Show the states of jobs that follow each other, and a run's progress, until they end; Ctrl-C leaves them alone.

    Raises:
        JobError: one did not end well; with its own exit code, where it left one.
    """
    sent = jobs[-1]
    try:
        with _shown(sent):
            for sent in jobs:
                state = _states(sent)
                if state != "finished":
                    break
    except KeyboardInterrupt:
        again = f"{program()} site"
        console.print(f"\njob {sent.job.id} goes on without you. [dim]Come back:[/] {again} follow {sent.job.folder}")
        console.print(f"[dim]stop it, ready to resume:[/] {again} stop {sent.job.folder}")
        return
    if state != "finished":
        raise JobError(told(sent, state), _code(sent))
    console.print(f"job {sent.job.id} finished: {bold(sent.makes)}")


def _states(sent: SubmittedJob) -> JobState:
    from clew.jobs.launchers.launcher import END_STATES

    batch, before = sent.batch, ""
    while True:
        state = batch.state(sent.job)
        if state in END_STATES:
            return state
        words = f"{state} {batch.explain(sent.job)}".strip()
        if words != before:
            console.print(f"job {sent.job.id} [dim]{escape(words)}[/]")
            before = words
        time.sleep(_PAUSE)


@contextlib.contextmanager
def _shown(sent: SubmittedJob) -> Iterator[None]:
    """The records of a run, as soon as there are some."""
    import threading

    from clew.cli.runs.follow import following
    from clew.runs import Run

    if sent.verb != "train":
        yield
        return
    with following() as begun:
        over = threading.Event()

        def wait() -> None:
            run = Run(Path(sent.makes))
            while not over.wait(_PAUSE):
                if run.config_file.exists() and any(True for _ in run.records()):
                    begun(run)
                    return

        waiting = threading.Thread(target=wait, daemon=True)
        waiting.start()
        try:
            yield
        finally:
            over.set()
            waiting.join()


def told(sent: SubmittedJob, state: JobState) -> str:
    """One line about a job that ended otherwise than well."""
    log = _log(sent)
    words = sent.batch.explain(sent.job) or _last_words(log)
    what = {"stopped": "stopped, ready to be resumed", "cancelled": "is gone"}.get(state, state)
    line = f"job {sent.job.id} at {sent.site} {what}: {words}"
    if log.exists():
        return f"{line} (see {log})"
    return "; ".join([line, *(told(each, each.batch.state(each.job)) for each in _before(sent))])


def _log(sent: SubmittedJob) -> Path:
    """What it printed; of an array, the first that did not end well."""
    if sent.job.log.exists():
        return sent.job.log
    ends = sorted(Path(sent.job.folder).glob("exit-*"), key=lambda each: (each.read_text().strip() == "0", each.name))
    return sent.job.log.with_name(f"{ends[0].name.replace('exit', 'log')}.txt") if ends else sent.job.log


def _before(sent: SubmittedJob) -> list[SubmittedJob]:
    """Of the jobs that it was to follow, those that did not end well, as far as they were handed in from here."""
    from clew.jobs.launchers.launcher import END_STATES
    from clew.jobs.submitted import submitted_under

    known = [each for each in submitted_under(Path()) if each.job.id in sent.after and each.site == sent.site]
    return [each for each in known if each.batch.state(each.job) in set(END_STATES) - {"finished"}]


def _last_words(log: Path) -> str:
    from clew.core.log_tail import NO_MESSAGE, log_lines, without_prefix

    lines = [re.sub(r"^\S+/stopped: line \d+: ", "", line) for line in log_lines(log)]  # how bash calls a rank's shell
    kept = [line for line in lines if not line.startswith(("srun: ", "slurmstepd"))]
    own = [line for line in kept if line.startswith("clew: ")]  # those it took with it may speak after it
    ranks = [line for line in own if line.startswith("clew: rank ")]
    told = [line for line in own if line not in ranks] or ranks[:1] or kept  # the first that died took the others along
    return without_prefix(told[-1]) if told else NO_MESSAGE


def _code(sent: SubmittedJob) -> int:
    from clew.jobs.launchers.local import exit_file

    file = exit_file(Path(sent.job.folder))
    code = file.read_text().strip() if file.exists() else ""
    return int(code) if code.isdecimal() and code != "0" else 1
