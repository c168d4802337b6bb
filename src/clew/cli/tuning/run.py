"""`clew tune run`: create or resume a study, run it, and show its progress."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.live import Live
from rich.markup import escape
from rich.text import Text

from clew.cli.options import bold, console, program
from clew.errors import ConfigError
from clew.jobs.launchers import warm
from clew.jobs.launchers.launcher import Slot
from clew.jobs.rank_info import RankInfo, current_rank, open_rank_store

if TYPE_CHECKING:
    from clew.tuning.executor import Executor
    from clew.tuning.snapshot import TrialSummary
    from clew.tuning.space import Template
    from clew.tuning.study import Study

_MOST_ROWS = 12
"""Trials in the live table and at the end."""
_REFRESH_SECONDS = 0.5


def run(
    recipe: str | None,
    settings: Sequence[str],
    *,
    output: str | None,
    resume: str | None,
    join: bool,
    oversubscribe: bool,
) -> None:
    """Create or open the study, run it, and print the result."""
    from clew.tuning.folder import StudyFolder

    if (recipe is None) == (resume is None):
        raise ConfigError("name settings with a section `tune` (clew tune run my.yaml), or a study (--resume STUDY)")
    resume = None if resume is None else str(StudyFolder.open(resume).path)
    source = str(recipe or f"{resume}/config.yaml")
    rank = current_rank()
    if rank.ranks > 1:
        _run_in_allocation(rank, source, settings, resume or output, join=join)
    else:
        coordinate(source, settings, resume or output, join=join, oversubscribe=oversubscribe)


def coordinate(
    source: str,
    settings: Sequence[str],
    folder: str | None,
    *,
    join: bool,
    oversubscribe: bool = False,
    executor: Callable[[Template, Study], Executor] | None = None,
) -> None:
    """Create or open the study and run it from this process.

    Args:
        source: A recipe or a YAML file.
        settings: Settings as `KEY=VALUE`.
        folder: The folder of the study; None: the next free one.
        join: Help a study that another process coordinates.
        oversubscribe: Allow more trials at a time than there are cores or devices.
        executor: Builds what executes the trials. Default: jobs on this machine.
    """
    from clew.settings import load_settings
    from clew.tuning.api import local_executor, open_or_create, tune
    from clew.tuning.resource_slots import trial_slots

    template = load_settings(source, settings)
    if executor is None and template.tune is not None:  # checked before the study is created
        trial_slots(template.tune.parallel, template.tune.ranks, oversubscribe=oversubscribe)
        warm.prepare_server(template.recipe.location)
    study = open_or_create(template, folder)
    console.print(f"study {bold(study.folder.path)}: {study.total_trials} trials, {study.config.sampler.name}")
    build = partial(local_executor, oversubscribe=oversubscribe) if executor is None else executor
    with live_progress() as on_progress:
        tune(template, study, executor=partial(build, template), join=join, on_progress=on_progress)
    show_result(study)


def _run_in_allocation(rank: RankInfo, source: str, settings: Sequence[str], folder: str | None, *, join: bool) -> None:
    """Under mpiexec or srun: rank 0 coordinates, the other ranks form blocks that train."""
    from clew.jobs.launchers.allocation import BlockLauncher, run_block_rank
    from clew.settings import load_settings
    from clew.tuning.job_executor import JobExecutor

    template = load_settings(source, settings)
    if template.tune is not None and template.tune.packed:
        raise ConfigError(f"packed trials run on one machine only; run clew tune without {rank.launcher}")
    size = template.tune.ranks if template.tune is not None else 1
    if rank.ranks <= size:
        raise ConfigError(
            f"{rank.launcher} started {rank.ranks} processes; a study needs one to coordinate and {size} per trial"
        )
    root = Path(folder or "studies").absolute().parent
    root.mkdir(parents=True, exist_ok=True)
    store = open_rank_store(rank, root)
    if rank.rank:
        run_block_rank(rank, store, size, template.recipe.location)
        return
    blocks = BlockLauncher(store, rank.ranks, size)

    def executor(template: Template, study: Study) -> Executor:
        slots = [Slot()] * min(blocks.count, study.config.parallel or blocks.count)
        return JobExecutor(study.folder, template, slots, blocks)

    try:
        coordinate(source, settings, folder, join=join, executor=executor)
    finally:
        blocks.dismiss_ranks()
        time.sleep(1)  # the store ends with this process; the other ranks must read the message first


def show_result(study: Study) -> None:
    """Print the best trials and the next commands."""
    from clew.cli.tuning import show

    show.show(study, limit=_MOST_ROWS)
    if study.config.packed:
        _show_unpacked(study)
    name, path = program(), study.folder.path
    best = study.best()
    if best:
        choice = f" --trial {best[0].number}" if len(best) > 1 else ""  # one trial of the Pareto front
        console.print(
            f"Next: {name} tune best {bold(path)}{choice} --apply best.yaml   or: {name} tune show {bold(path)} --html"
        )


def _show_unpacked(study: Study) -> None:
    """Print how many trials were not packed, and why."""
    from clew.runs.folder import list_runs

    notes = (note for run in list_runs(study.folder.trials) for note in run.records(kind="note"))
    for message, count in Counter(str(note["message"]) for note in notes).items():
        if message.startswith("not packed"):
            console.print(f"[dim]{count} trials {escape(message)}[/]")


@contextlib.contextmanager
def live_progress() -> Iterator[Callable[[Study], None]]:
    """Yield a function that shows a study: a live table in a terminal, else one line per trial that ended."""
    printed: set[int] = set()
    if not console.is_terminal:
        yield lambda study: _print_ended(study, printed)
        return
    with Live(console=console, transient=True, auto_refresh=False) as live:
        last = 0.0

        def draw(study: Study) -> None:
            nonlocal last
            if time.monotonic() - last > _REFRESH_SECONDS:
                last = time.monotonic()
                live.update(Text("\n".join(_live_lines(study))), refresh=True)

        yield draw


def _print_ended(study: Study, printed: set[int]) -> None:
    from clew.tuning.snapshot import END_STATES

    if sum(number for state, number in study.count().items() if state in END_STATES) == len(printed):
        return
    for trial in study.trials():
        if trial.state in END_STATES and trial.number not in printed:
            printed.add(trial.number)
            console.print(f"  trial {trial.number:>3} {trial.state}  {_result_text(trial)}", markup=False)


def _result_text(trial: TrialSummary) -> str:
    values = "  ".join(f"{value:.6g}" for value in trial.values) or trial.reason
    return f"{values}  {trial.seconds:.1f} s"


def _live_lines(study: Study) -> list[str]:
    from clew.cli.text_table import fit, line_width
    from clew.cli.tuning import show

    trials = study.trials()
    running = [trial for trial in trials if trial.state == "running"]
    ended = show.ranked(study, [trial for trial in trials if trial.state != "running"])
    shown = [*running, *ended][:_MOST_ROWS]
    counts = ", ".join(f"{number} {state}" for state, number in study.count().items() if number)
    return [counts, *(fit(show.columns(study, shown), width=line_width()) if shown else [])]
