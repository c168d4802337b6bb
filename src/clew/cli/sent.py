"""Handing a job in at a site, and watching it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.markup import escape

from clew.cli.options import bold, console, program
from clew.errors import JobError

if TYPE_CHECKING:
    from clew.cli.on import Asked, Work
    from clew.launch.launcher import State
    from clew.launch.sent import Sent

_PAUSE = 0.5


def hand_in(asked: Asked, work: Work, arguments: list[str]) -> None:
    """Submit, say so, and watch it where that is wanted."""
    from clew.launch.sent import folder_for, submit
    from clew.launch.site import batch

    folder, needs = folder_for(work.makes), asked.needs(work)
    command = work.command or [*arguments, *work.added]
    if asked.given["dry_run"]:
        typer.echo(batch(asked.site, needs).script(command, folder.absolute()), nl=False)
        return
    sent = submit(asked.name, command, needs=needs, folder=folder, makes=work.makes, verb=work.verb)
    _tell(sent)
    if work.then is not None:
        last = needs.model_copy(update={"array": None, "after": (sent.job.id,)})
        sent = submit(
            asked.name, work.then, needs=last, folder=folder_for(work.makes), makes=work.makes, verb=work.verb
        )
        _tell(sent)
    follow = asked.given["follow"]
    if follow if follow is not None else console.is_terminal:
        watch(sent)
    else:
        console.print(f"[dim]watch it:[/] {program()} site follow {sent.job.folder}")


def _tell(sent: Sent) -> None:
    console.print(f"job {bold(sent.job.id)} at {bold(sent.site)} makes {bold(sent.makes)}; it prints to {sent.job.log}")


def watch(sent: Sent) -> None:
    """Show a job's states, and a run's progress, until it ends; Ctrl-C leaves it to itself.

    Raises:
        JobError: it did not end well; with its own exit code, where it left one.
    """
    try:
        with _shown(sent):
            state = _states(sent)
    except KeyboardInterrupt:
        again = f"{program()} site"
        console.print(f"\njob {sent.job.id} goes on without you. [dim]Come back:[/] {again} follow {sent.job.folder}")
        console.print(f"[dim]stop it, ready to resume:[/] {again} stop {sent.job.folder}")
        return
    if state != "finished":
        raise JobError(told(sent, state), _code(sent))
    console.print(f"job {sent.job.id} finished: {bold(sent.makes)}")


def _states(sent: Sent) -> State:
    from clew.launch.launcher import ENDS

    batch, before = sent.batch, ""
    while True:
        state = batch.state(sent.job)
        if state in ENDS:
            return state
        words = f"{state} {batch.explain(sent.job)}".strip()
        if words != before:
            console.print(f"job {sent.job.id} [dim]{escape(words)}[/]")
            before = words
        time.sleep(_PAUSE)


@contextlib.contextmanager
def _shown(sent: Sent) -> Iterator[None]:
    """The records of a run, as soon as there are some."""
    import threading

    from clew.cli.follow import following
    from clew.ledger import Run

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


def told(sent: Sent, state: State) -> str:
    """One line about a job that ended otherwise than well."""
    words = sent.batch.explain(sent.job) or _last_words(sent.job.log)
    what = {"stopped": "stopped, ready to be resumed", "cancelled": "is gone"}.get(state, state)
    return f"job {sent.job.id} at {sent.site} {what}: {words} (see {sent.job.log})"


def _last_words(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    kept = [line for line in lines if not line.startswith(("Run it again with --debug", "srun: ", "slurmstepd"))]
    own = [line for line in kept if line.startswith("clew: ")]  # those it took with it may speak after it
    ranks = [line for line in own if line.startswith("clew: rank ")]
    told = [line for line in own if line not in ranks] or ranks[:1] or kept  # the first that died took the others along
    return told[-1].strip().removeprefix("clew: ") if told else "it ended without a word"


def _code(sent: Sent) -> int:
    from clew.launch.detached import exit_file

    file = exit_file(Path(sent.job.folder))
    code = file.read_text().strip() if file.exists() else ""
    return int(code) if code.isdecimal() and code != "0" else 1
