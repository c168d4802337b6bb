"""Submitting a job to a site, and watching it."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator, Sequence
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


def submit_work(site: SiteOptions, work: SiteWork) -> None:
    """Submit the job, print where it is, and watch it if the options say so."""
    from clew.jobs.sites import scheduler_at
    from clew.jobs.submitted import JobOutput, free_job_folder, submit

    folder, request = free_job_folder(work.output), site.request(work)
    if site.values["dry_run"]:
        typer.echo(scheduler_at(site.profile, request).script(work.task, folder.absolute()), nl=False)
        return
    output = JobOutput(work.output, work.verb)
    jobs = [submit(site.name, work.task, request=request, folder=folder, output=output)]
    if work.then is not None:
        last = request.model_copy(update={"array": None, "after": (jobs[0].job.id,)})
        folder = free_job_folder(work.output)
        jobs.append(submit(site.name, work.then, request=last, folder=folder, output=output))
    for job in jobs:
        log = job.job.log.with_name("log-*.txt") if request.array and job is jobs[0] else job.job.log
        console.print(f"job {bold(job.job.id)} at {bold(job.site)} makes {bold(job.output)}; it prints to {log}")
    follow = site.values["follow"]
    if follow if follow is not None else console.is_terminal:
        watch_submitted(*jobs)
    else:
        console.print(f"[dim]watch it:[/] {program()} follow {jobs[-1].job.folder}")


def submitted_facts(job: SubmittedJob) -> dict[str, str | float]:
    """Facts about a job of a site, for programs."""
    state, reason = job.launcher.state(job.job), job.launcher.explain(job.job)
    facts = {"id": job.job.id, "site": job.site, "verb": job.verb, "state": state, "output": job.output}
    return {**facts, "reason": reason, "folder": str(job.job.folder), "submitted": job.time}


def write_submitted(jobs: Sequence[SubmittedJob]) -> None:
    """Print one line per job of a site: its number, site, state and what it makes."""
    from clew.cli.text_table import Column, line_width, write

    rows: list[tuple[str, ...]] = []
    launchers = {each.site: each.launcher for each in jobs}  # one per site: it asks the queue once for all jobs
    for each in jobs:
        launcher, job = launchers[each.site], each.job
        state, reason = launcher.state(job), launcher.explain(job)
        rows.append((job.id, each.site, each.verb, state, each.output, reason))
    heads = ("job", "site", "verb", "state", "output", "")
    write([Column(head, cells) for head, cells in zip(heads, zip(*rows, strict=True), strict=True)], width=line_width())


def watch_submitted(*jobs: SubmittedJob) -> None:
    """Show the states of jobs that follow each other, and a run's progress, until they end; Ctrl-C leaves them alone.

    Raises:
        JobError: one failed; with its own exit code, where it left one.
    """
    current = jobs[-1]
    try:
        with _run_shown(current):
            for current in jobs:
                state = _print_states(current)
                if state != "finished":
                    break
    except KeyboardInterrupt:
        number, folder = current.job.id, current.job.folder
        console.print(f"\njob {number} continues. [dim]Watch it again:[/] {program()} follow {folder}")
        console.print(f"[dim]stop it, ready to resume:[/] {program()} stop {folder}")
        return
    if state != "finished":
        raise JobError(failure_message(current, state), _exit_code(current))
    console.print(f"job {current.job.id} finished: {bold(current.output)}")


def _print_states(submitted: SubmittedJob) -> JobState:
    from clew.jobs.launchers.launcher import END_STATES

    launcher, before = submitted.launcher, ""
    while True:
        state = launcher.state(submitted.job)
        if state in END_STATES:
            return state
        message = f"{state} {launcher.explain(submitted.job)}".strip()
        if message != before:
            console.print(f"job {submitted.job.id} [dim]{escape(message)}[/]")
            before = message
        time.sleep(_PAUSE)


@contextlib.contextmanager
def _run_shown(submitted: SubmittedJob) -> Iterator[None]:
    """Show the records of a run as soon as there are some."""
    import threading

    from clew.cli.runs.follow import following
    from clew.runs import Run

    if submitted.verb != "train":
        yield
        return
    with following() as started:
        ended = threading.Event()

        def wait_for_records() -> None:
            run = Run(Path(submitted.output))
            while not ended.wait(_PAUSE):
                if run.config_file.exists() and any(True for _ in run.records()):
                    started(run)
                    return

        waiting = threading.Thread(target=wait_for_records, daemon=True)
        waiting.start()
        try:
            yield
        finally:
            ended.set()
            waiting.join()


def failure_message(submitted: SubmittedJob, state: JobState) -> str:
    """One line about a job that did not succeed."""
    log = job_log(submitted)
    reason = submitted.launcher.explain(submitted.job) or _last_message(log)
    words = {"stopped": "stopped, ready to be resumed", "cancelled": "is gone"}.get(state, state)
    line = f"job {submitted.job.id} at {submitted.site} {words}: {reason}"
    if log.exists():
        return f"{line} (see {log})"
    earlier = [failure_message(job, job.launcher.state(job.job)) for job in _failed_before(submitted)]
    return "; ".join([line, *earlier])


def job_log(submitted: SubmittedJob) -> Path:
    """The log of a job; of an array, the first that did not succeed."""
    from clew.jobs.supervisor import read_ends

    log = submitted.job.log
    if log.exists():
        return log
    folder = Path(submitted.job.folder)
    numbers = [file.stem.removeprefix("end-") for file in sorted(folder.glob("end-*.json"))]
    ends = sorted(zip(read_ends(folder), numbers, strict=False), key=lambda pair: (pair[0].code == 0, pair[1]))
    return log.with_name(f"log-{ends[0][1]}.txt") if ends else log


def _failed_before(submitted: SubmittedJob) -> list[SubmittedJob]:
    """Of the jobs that it was to follow, those that did not succeed, as far as they were submitted from here."""
    from clew.jobs.launchers.launcher import END_STATES
    from clew.jobs.submitted import submitted_under

    jobs = [job for job in submitted_under(Path()) if job.job.id in submitted.after and job.site == submitted.site]
    return [job for job in jobs if job.launcher.state(job.job) in set(END_STATES) - {"finished"}]


def _last_message(log: Path) -> str:
    from clew.core.log_tail import NO_MESSAGE, log_lines, without_prefix

    lines = [re.sub(r"^\S+/stopped: line \d+: ", "", line) for line in log_lines(log)]  # how bash calls a rank's shell
    useful = [line for line in lines if not line.startswith(("srun: ", "slurmstepd"))]
    errors = [line for line in useful if line.startswith("clew: ")]  # ranks that it ended may print after it
    ranks = [line for line in errors if line.startswith("clew: rank ")]
    messages = [line for line in errors if line not in ranks] or ranks[:1] or useful  # the first that died ended others
    return without_prefix(messages[-1]) if messages else NO_MESSAGE


def _exit_code(submitted: SubmittedJob) -> int:
    from clew.jobs.supervisor import read_end

    end = read_end(Path(submitted.job.folder))
    return end.code if end is not None and end.code > 0 else 1
