"""`clew prepare`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from clew.cli.jobs.on_site import SiteOptions, SiteWork, arguments, on_site
from clew.cli.options import Settings, What, console, overrides
from clew.cli.transfer_progress import fetching
from clew.errors import ConfigError, WorkerError, nearest

if TYPE_CHECKING:
    from clew.data.prepare.api import Explanation

_SPREADS = ("cores", "mpi", "array")


def _plan(
    asked: SiteOptions, *, recipe: str, output: str | None, workers: int | None, spread: str | None, **others: Any
) -> SiteWork:
    """What `--on SITE` hands in: one job of several ranks or cores, or an array that fills the cache and a last one."""
    from clew.settings import load_settings

    loaded = load_settings(recipe, overrides(others["settings"], prepare__output=output))
    makes, many = Path(loaded.prepare.output), workers or 1
    chosen = spread or ("mpi" if many > 1 and asked.site.mpi else "cores")
    if chosen not in _SPREADS:
        raise ConfigError(f"--as {chosen}{nearest(chosen, _SPREADS)}")
    if chosen == "mpi":
        return SiteWork("prepare", makes, asked.ranks(many), ["--executor", "mpi"])
    if chosen == "cores":
        return SiteWork("prepare", makes, needs={"cpus": many} if workers else {})
    own = ["--workers", str(asked.given["cpus"] or asked.site.cpus)]
    return SiteWork(
        "prepare", makes, added=[*own, "--part", f"{{task}}/{many}"], needs={"array": many}, then=[*arguments(), *own]
    )


@on_site(_plan)
def prepare(
    recipe: What,
    input: Annotated[
        list[str] | None,
        typer.Option(help="Files, a folder, a glob, a URL or @LIST; SPLIT=... puts them in a split. Repeatable."),
    ] = None,
    output: Annotated[str | None, typer.Option(help="The dataset's folder, or a place in a store.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes (default: one a core).")] = None,
    settings: Settings = None,
    executor: Annotated[
        str | None, typer.Option(help="processes, threads, mpi, dask or dask://HOST:PORT (default: what fits).")
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Take the place of another dataset.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Read all inputs and shards again, trust no date.")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Say what is cached and why not; do nothing.")] = False,
    part: Annotated[
        str | None, typer.Option(hidden=True, metavar="I/N", help="Fill the cache alone, beginning at this part.")
    ] = None,
    spread: Annotated[
        str | None,
        typer.Option("--as", metavar="cores|mpi|array", help="With --on: one node, one MPI job, or N jobs."),
    ] = None,
) -> None:
    """Turn raw events into a dataset of HDF5 shards.

    Nothing is done where the dataset is there and neither inputs, settings nor code have changed.

    \b
    Examples:
      clew prepare tracking --input 'events/*.txt' --output dataset --workers 8
      clew prepare my_recipe.py --input events --set prepare.shard_mb=64
      clew prepare tracking --input events --explain
      clew prepare tracking --input 'train=2023/*.txt' --input 'val=2024/*.txt'
      clew prepare tracking --input 's3://bucket/events/*.txt' --output s3://bucket/dataset
      mpiexec -n 8 clew prepare tracking --input events
      clew prepare tracking --input events --on mycluster --workers 32 --as mpi
      clew prepare tracking --input events --on mycluster --workers 20 --as array
    """
    from clew.cli.runs.follow import preparing
    from clew.data.prepare import api
    from clew.data.prepare.executors import mpi_rank
    from clew.settings import load_settings

    options = {"input": _inputs(input or ()), "output": output, "workers": workers, "executor": executor}
    chosen = overrides(settings, **{f"prepare__{name}": value for name, value in options.items()})
    loaded = load_settings(recipe, chosen)
    if part is not None:
        api.fill_cache(loaded.recipe, loaded.prepare, *_part(part))
        return
    if explain:
        _explain(api.explain(loaded.recipe, loaded.prepare))
        return
    with fetching(), preparing() as show:
        try:
            dataset = api.prepare(loaded.recipe, loaded.prepare, replace=replace, verify=verify, progress=show)
        except WorkerError as error:
            if mpi_rank():  # rank 0 tells for all
                raise typer.Exit(1) from error
            raise
        if not mpi_rank():  # under mpiexec one tells for all
            show.tell(dataset)


def _part(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if not match or int(match[1]) >= int(match[2]):
        raise ConfigError(f"--part {text}: expected I/N with I from 0 to N-1")
    return int(match[1]), int(match[2])


def _inputs(given: Sequence[str]) -> list[str] | dict[str, list[str]] | None:
    """Patterns, or those of each split where they are given as SPLIT=PATTERN; a path with = in it begins with ./ or /.

    Raises:
        ConfigError: some name a split and some do not.
    """
    named = [re.fullmatch(r"(\w[\w.-]*)=(.+)", pattern) for pattern in given]
    splits: dict[str, list[str]] = {}
    for pattern, match in zip(given, named, strict=True):
        if match:
            splits.setdefault(match[1], []).append(match[2])
        elif any(named):
            raise ConfigError(f"--input {pattern}: names no split, others do; write SPLIT={pattern}")
    return splits or list(given) or None


def _explain(found: Explanation) -> None:
    console.print(f"dataset: {found.dataset}")
    if found.dataset != "up to date":
        for line in (*found.reasons.get("inputs", ()), *found.reasons.get("dataset", ())):
            console.print(f"  {escape(line)}")
    earlier = ""
    for stage, (cached, total) in found.stages.items():
        state = "hit" if cached == total else "miss" if not cached else "partly"
        console.print(f"{stage}: [bold]{state}[/], {cached} of {total} pieces cached")
        if cached < total:
            why = f"the stage {earlier} has changed" if earlier else "inputs are new, or the cache was pruned or moved"
            for line in found.reasons.get(stage, []) or [why]:
                console.print(f"  {escape(line)}")
            earlier = earlier or stage
