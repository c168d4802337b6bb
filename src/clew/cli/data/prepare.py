"""`clew prepare`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from clew.cli.jobs.command_words import command_words
from clew.cli.jobs.on_site import SiteOptions, SiteWork, on_site
from clew.cli.options import Settings, What, console, overrides, printed_warnings
from clew.cli.transfer_progress import show_fetches
from clew.errors import ConfigError, WorkerError, nearest
from clew.jobs.task import FillCacheTask, command_task

if TYPE_CHECKING:
    from clew.data.prepare.explanation import Explanation
    from clew.settings import Settings as LoadedSettings

_Places = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PLACE", help="Use the dataset if it is there: a folder or store of datasets, or `server`. Repeatable."
    ),
]
_SPREADS = ("cores", "mpi", "array")


def _plan(site: SiteOptions, **options: Any) -> SiteWork:
    """What `--on SITE` submits: one job of several workers or cores, or an array and a last job."""
    from clew.settings import load_settings

    workers, spread = options["workers"], options.pop("spread")
    loaded = load_settings(options["recipe"], overrides(options["settings"], prepare__output=options["output"]))
    output, count = Path(loaded.prepare.output), workers or 1
    form = spread or ("mpi" if count > 1 and site.profile.mpi else "cores")
    if form not in _SPREADS:
        raise ConfigError(f"--as {form}{nearest(form, _SPREADS)}")
    if form == "mpi":
        task = command_task(command_words(("prepare",), {**options, "executor": "mpi"}))
        return SiteWork("prepare", output, task, workers=site.workers(count))
    if form == "cores":
        task = command_task(command_words(("prepare",), options))
        return SiteWork("prepare", output, task, request={"cpus": count} if workers else {})
    on_node = {**options, "workers": site.values["cpus"] or site.profile.cpus}
    part = FillCacheTask(recipe=options["recipe"], settings=tuple(_prepare_settings(**on_node)), parts=count)
    last = command_task(command_words(("prepare",), on_node))
    return SiteWork("prepare", output, part, request={"array": count}, then=last)


def _prepare_settings(
    *,
    input: list[str] | None,
    output: str | None,
    workers: int | None,
    settings: list[str] | None,
    executor: str | None,
    **others: Any,
) -> list[str]:
    """The options of the command line as settings."""
    options = {"input": input_patterns(input or ()), "output": output, "workers": workers, "executor": executor}
    return overrides(settings, **{f"prepare__{name}": value for name, value in options.items()})


def fill_cache(task: FillCacheTask, index: int | None) -> None:
    """Fill the shared cache with one part of a preparation."""
    from clew.data.prepare import api
    from clew.settings import load_settings

    if index is None or not 0 <= index < task.parts:
        raise ConfigError(f"part {index} of {task.parts}: expected a number from 0 to {task.parts - 1}")
    loaded = load_settings(task.recipe, task.settings)
    api.fill_cache(loaded.recipe, loaded.prepare, index, task.parts)


@on_site(_plan)
def prepare(
    recipe: What,
    input: Annotated[
        list[str] | None,
        typer.Option(help="Files, a folder, a glob, a URL or @LIST; SPLIT=... puts them in a split. Repeatable."),
    ] = None,
    output: Annotated[str | None, typer.Option(help="Folder of the dataset, or a URL in a store.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes (default: one per core).")] = None,
    settings: Settings = None,
    executor: Annotated[
        str | None,
        typer.Option(help="processes, threads, mpi, dask or dask://HOST:PORT (default: automatic)."),
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace an existing dataset.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Read all inputs and shards again.")] = False,
    reuse: _Places = None,
    explain: Annotated[bool, typer.Option("--explain", help="Print what is cached, and why not; then stop.")] = False,
    spread: Annotated[
        str | None,
        typer.Option("--as", metavar="cores|mpi|array", help="With --on: one node, one MPI job, or N jobs."),
    ] = None,
) -> None:
    """Turn raw events into a dataset of HDF5 shards.

    Nothing is computed if the dataset exists and neither inputs, settings nor code have changed.

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
      clew prepare tracking --input events --reuse s3://bucket/datasets --reuse server
    """
    from clew.data.prepare import api
    from clew.settings import load_settings

    chosen = _prepare_settings(input=input, output=output, workers=workers, settings=settings, executor=executor)
    loaded = load_settings(recipe, chosen)
    if explain:
        _explain(api.explain(loaded.recipe, loaded.prepare))
        return
    if reuse:
        _reuse(loaded, reuse)
    _prepare(loaded, replace=replace, verify=verify)


def _prepare(loaded: LoadedSettings, *, replace: bool, verify: bool) -> None:
    from clew.cli.runs.follow import preparing
    from clew.data.prepare import api
    from clew.data.prepare.executors import mpi_rank

    with show_fetches(), preparing() as view, printed_warnings():
        try:
            dataset = api.prepare(
                loaded.recipe, loaded.prepare, replace=replace, verify=verify, progress=view.preparing
            )
        except WorkerError as error:
            if mpi_rank():  # rank 0 prints the error for all ranks
                raise typer.Exit(error.exit_code) from error
            raise
        if not mpi_rank():  # under mpiexec only rank 0 prints
            view.prepared(dataset)


def _reuse(loaded: LoadedSettings, places: Sequence[str]) -> None:
    """Bring a dataset that was prepared before to the output, if one of the places has it. Print what is used."""
    from clew import storage
    from clew.data.prepare import api
    from clew.data.prepare.reuse import REGISTERED, fetch_dataset, find_dataset
    from clew.jobs.rank_info import current_rank

    if current_rank().ranks > 1:
        raise ConfigError("--reuse: not under mpiexec or srun with several ranks; leave it out")
    output = loaded.prepare.output
    if storage.is_url(output) or storage.local_path(output).exists():
        return
    key = api.dataset_key(loaded.recipe, loaded.prepare)
    known = [each for place in places for each in (_registered(key) if place == REGISTERED else [place])]
    location = find_dataset(key, known)
    if location is None:
        return
    console.print(f"the dataset {key[:16]} is at {escape(storage.mask_secrets(location))}: it is not prepared again")
    with show_fetches():
        fetch_dataset(location, storage.local_path(output))


def _registered(key: str) -> Sequence[str]:
    """Where a server knows a dataset. A server that does not answer is no reason not to prepare it."""
    from clew.client.client import Client
    from clew.errors import ServerError

    try:
        with Client(retry_seconds=0) as client:
            return client.datasets.locations(key)
    except ServerError as error:
        console.print(f"[yellow]--reuse server: {escape(str(error))}[/]")
        return []


def input_patterns(patterns: Sequence[str]) -> list[str] | dict[str, list[str]] | None:
    """Patterns of files, or those of each split if they are written as SPLIT=PATTERN.

    A path that contains = must start with ./ or /.

    Raises:
        ConfigError: Some patterns name a split and some do not.
    """
    named = [re.fullmatch(r"(\w[\w.-]*)=(.+)", pattern) for pattern in patterns]
    splits: dict[str, list[str]] = {}
    for pattern, match in zip(patterns, named, strict=True):
        if match:
            splits.setdefault(match[1], []).append(match[2])
        elif any(named):
            raise ConfigError(f"--input {pattern}: has no split, other inputs have one; write SPLIT={pattern}")
    return splits or list(patterns) or None


def _explain(explanation: Explanation) -> None:
    console.print(f"dataset: {explanation.dataset}")
    if explanation.dataset != "up to date":
        for line in (*explanation.reasons.get("inputs", ()), *explanation.reasons.get("dataset", ())):
            console.print(f"  {escape(line)}")
    for name, stage in explanation.stages.items():
        console.print(f"{name}: [bold]{stage.word}[/], {stage.cached} of {stage.pieces} pieces cached")
        for line in explanation.reasons.get(name, ()) if stage.computed else ():
            console.print(f"  {escape(line)}")
