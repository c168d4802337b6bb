"""`clew tune run`: a study from its settings, watched while it runs."""

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
from clew.jobs.rank_info import RankInfo, open_rank_store
from clew.jobs.rank_info import current_rank as launched

if TYPE_CHECKING:
    from clew.tuning.executor import Executor
    from clew.tuning.space import Template
    from clew.tuning.study import Study, TrialSummary

_LINES = 12
"""Trials in the live table."""


def run(
    recipe: str | None,
    settings: Sequence[str],
    *,
    output: str | None,
    resume: str | None,
    join: bool,
    oversubscribe: bool,
) -> None:
    """Make or open the study, run it, say what was found."""
    if (recipe is None) == (resume is None):
        raise ConfigError("name settings with a section `tune` (clew tune run my.yaml), or a study (--resume STUDY)")
    source = str(recipe or f"{resume}/config.yaml")
    place = launched()
    if place.ranks > 1:
        _in_blocks(place, source, settings, output=output, resume=resume, join=join)
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
    """Make or open the study and run it from here; `executor` does the trials, by default on this machine."""
    from clew.settings import load_settings
    from clew.tuning.api import open_or_create, tune
    from clew.tuning.resource_slots import trial_slots

    template = load_settings(source, settings)
    if executor is None and template.tune is not None:  # before anything is made
        trial_slots(template.tune.parallel, template.tune.ranks, oversubscribe=oversubscribe)
        warm.prepare_server(template.recipe.location)
    study = open_or_create(template, folder)
    console.print(f"study {bold(study.folder.path)}: {study.wanted} trials, {study.config.sampler.name}")
    doing = None if executor is None else partial(executor, template)
    with watching() as shown:
        tune(template, study, executor=doing, join=join, oversubscribe=oversubscribe, shown=shown)
    tell_end(study)


def _in_blocks(
    place: RankInfo, source: str, settings: Sequence[str], *, output: str | None, resume: str | None, join: bool
) -> None:
    """Under mpiexec or srun: rank 0 coordinates, the others form blocks that train."""
    from clew.jobs.launchers.allocation import BlockLauncher, run_block_rank
    from clew.settings import load_settings
    from clew.tuning.job_executor import JobExecutor

    template = load_settings(source, settings)
    if template.tune is not None and template.tune.packed:
        raise ConfigError(f"packed trials run on one machine so far; call clew tune without {place.launcher}")
    size = template.tune.ranks if template.tune is not None else 1
    if place.ranks <= size:
        raise ConfigError(f"{place.launcher} started {place.ranks} processes: one that coordinates and {size} a trial")
    root = Path(resume or output or "studies").absolute().parent
    root.mkdir(parents=True, exist_ok=True)
    store = open_rank_store(place, root)
    if place.rank:
        run_block_rank(place, store, size, template.recipe.location)
        return
    blocks = BlockLauncher(store, place.ranks, size)

    def executor(template: Template, study: Study) -> Executor:
        rooms = [Slot()] * min(blocks.count, study.config.parallel or blocks.count)
        return JobExecutor(study.folder, template, rooms, blocks)

    try:
        coordinate(source, settings, resume or output, join=join, executor=executor)
    finally:
        blocks.dismiss_ranks()
        time.sleep(1)  # the store goes with this process: the others must hear of it before


def tell_end(study: Study) -> None:
    """What was found, and what to do next."""
    from clew.cli.tuning import show

    show.show(study, most=_LINES)
    if study.config.packed:
        _tell_unpacked(study)
    again, path = program(), study.folder.path
    best = study.best()
    if best:
        which = f" --trial {best[0].number}" if len(best) > 1 else ""  # one of the front
        console.print(
            f"Next: {again} tune best {bold(path)}{which} --apply best.yaml   or: {again} tune show {bold(path)} --html"
        )


def _tell_unpacked(study: Study) -> None:
    """Which trials were runs of their own, and why."""
    from clew.runs.folder import list_runs

    told = Counter(str(note["message"]) for run in list_runs(study.folder.trials) for note in run.records(kind="note"))
    for message, count in told.items():
        if message.startswith("not packed"):
            console.print(f"[dim]{count} trials {escape(message)}[/]")


@contextlib.contextmanager
def watching() -> Iterator[Callable[[Study], None]]:
    """Give what shows a study as it goes: a live table in a terminal, a line for every trial that ends elsewhere."""
    told: set[int] = set()
    if not console.is_terminal:
        yield lambda study: _lines(study, told)
        return
    with Live(console=console, transient=True, auto_refresh=False) as live:
        last = 0.0

        def draw(study: Study) -> None:
            nonlocal last
            if time.monotonic() - last > 0.5:
                last = time.monotonic()
                live.update(Text("\n".join(_live(study))), refresh=True)

        yield draw


def _lines(study: Study, told: set[int]) -> None:
    if sum(study.count()[state] for state in ("complete", "pruned", "failed")) == len(told):
        return
    for each in study.outcomes():
        if each.state in ("complete", "pruned", "failed") and each.number not in told:
            told.add(each.number)
            console.print(f"  trial {each.number:>3} {each.state}  {_words(each)}", markup=False)


def _words(each: TrialSummary) -> str:
    values = "  ".join(f"{value:.6g}" for value in each.values) or each.reason
    return f"{values}  {each.seconds:.1f} s"


def _live(study: Study) -> list[str]:
    from clew.cli.text_table import fit, room
    from clew.cli.tuning import show

    found = study.outcomes()
    running = [each for each in found if each.state == "running"]
    ended = show.ranked(study, [each for each in found if each.state != "running"])
    shown = [*running, *ended][:_LINES]
    counts = ", ".join(f"{number} {state}" for state, number in study.count().items() if number)
    return [counts, *(fit(show.columns(study, shown), width=room()) if shown else [])]
