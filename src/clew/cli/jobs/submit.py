"""`clew submit`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from clew.cli.jobs import submit_site
from clew.cli.jobs.agent import Server
from clew.cli.options import Settings, bold, console, overrides, parse_bytes, parse_seconds, program
from clew.errors import ConfigError, nearest

if TYPE_CHECKING:
    from clew.client.job import Kind, Submission

_KINDS = ("train", "tune", "prepare", "evaluate", "bench")
_NEEDS: Any = {"rich_help_panel": "What it needs"}
_PLAIN: Any = {"rich_help_panel": "Without a recipe, as `clew train --model`"}
Json = Annotated[bool, typer.Option("--json", help="Print everything as JSON.")]


def submit(
    recipe: Annotated[
        str,
        typer.Argument(
            help="A recipe's name or file, a YAML, a run's folder; for evaluate a job; for bench its words.",
            show_default=False,
        ),
    ] = "",
    kind: Annotated[str, typer.Option(help="train, tune, prepare, evaluate or bench.")] = "train",
    dataset: Annotated[str | None, typer.Option(help="A dataset's folder, or its key.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes that work together.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Passes over the data.")] = None,
    model: Annotated[str | None, typer.Option(help="file.py:name; the file travels with the job.", **_PLAIN)] = None,
    train_files: Annotated[
        list[str] | None, typer.Option("--train", metavar="FILES", help="Files or globs for training.", **_PLAIN)
    ] = None,
    val_files: Annotated[
        list[str] | None, typer.Option("--val", metavar="FILES", help="Default: a fifth of --train.", **_PLAIN)
    ] = None,
    features: Annotated[str | None, typer.Option(help="Input columns.", **_PLAIN)] = None,
    labels: Annotated[str | None, typer.Option(help="Label columns.", **_PLAIN)] = None,
    loss: Annotated[str | None, typer.Option(help="The loss, as in `clew train`.", **_PLAIN)] = None,
    weight: Annotated[str | None, typer.Option(help="Event weights.", **_PLAIN)] = None,
    select: Annotated[str | None, typer.Option(help="Selection of events.", **_PLAIN)] = None,
    scale: Annotated[str | None, typer.Option(help="standard or min_max.", **_PLAIN)] = None,
    settings: Settings = None,
    output: Annotated[str | None, typer.Option(metavar="NAME", help="The name of the job and of its run.")] = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="Nodes (default: 1).", **_NEEDS)] = None,
    cpus: Annotated[int | None, typer.Option(min=1, help="Cores per worker (default: 1).", **_NEEDS)] = None,
    gpus: Annotated[int | None, typer.Option(min=0, help="GPUs per worker (default: none).", **_NEEDS)] = None,
    memory: Annotated[
        str | None, typer.Option(help="Memory per worker: 4G. The job is killed if all use more.", **_NEEDS)
    ] = None,
    wall_time: Annotated[
        str | None, typer.Option(help="The longest time it may take: 30m, 12h. Then it is asked to end.", **_NEEDS)
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(metavar="SITE", help="By an agent of this site; without a server: submit it there."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="With --on: print what would be submitted.")] = False,
    priority: Annotated[int, typer.Option(min=-100, max=100, help="Jobs with higher numbers start first.")] = 0,
    group: Annotated[str | None, typer.Option(help="This group's agents may run it, its members see it.")] = None,
    requeue: Annotated[
        int,
        typer.Option(min=0, help="Continue up to N times when it stopped early (exit code 75) or its agent was lost."),
    ] = 0,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it ends; the exit code is the job's.")] = False,
    follow: Annotated[bool, typer.Option("--follow", help="The same, and print its output.")] = False,
    as_json: Json = False,
    server: Server = None,
) -> None:
    """Submit a job to a server; an agent of yours, or of your group, runs it.

    \b
    Examples:
      clew submit tracking --dataset data --epochs 5 --follow
      clew submit my.yaml --set train.optimizer.lr=1e-3 --output first --cpus 4 --gpus 1 --memory 16G --wall-time 12h
      clew submit my_recipe.py --dataset /data/jets --requeue 5 --wall-time 1h
      clew submit study.yaml --kind tune --cpus 8 --priority 10
      clew submit tracking --kind prepare --set prepare.input=/data/events --output dataset
      clew submit 12 --kind evaluate --wait
      clew submit --model net.py:build --train '/data/a*.h5' --features X --labels Y --epochs 5
      clew submit 'scale tracking --dataset /data/tracks --workers 1,2,4' --kind bench --cpus 4
      clew submit tracking --dataset /shared/data --workers 8 --nodes 2 --on mycluster

    Settings are checked here before anything is sent. A recipe in a file travels with the job.
    """
    if kind not in _KINDS:
        raise ConfigError(f"--kind {kind}: no such kind{nearest(kind, _KINDS)}")
    columns = {"features": features, "labels": labels, "loss": loss, "weight": weight, "select": select, "scale": scale}
    plain = _plain(recipe, kind, model, {"train": train_files, "val": val_files, **columns})
    if dry_run and on is None:
        raise ConfigError("--dry-run goes with --on SITE")
    options = {"dataset": dataset, "workers": workers, "epochs": epochs, "settings": settings, "output": output}
    needs = {"nodes": nodes, "cpus": cpus, "gpus": gpus, "memory": memory, "wall_time": wall_time}
    if on is not None and (dry_run or submit_site.goes_directly(on, server)):
        if model is not None or kind == "bench":
            verb = "train --model" if model is not None else "bench"
            raise ConfigError(f"this goes to {on} only through a server; without one: clew {verb} ... --on {on}")
        more = {"requeue": requeue, "priority": priority, "group": group, "json": as_json, "dry_run": dry_run}
        return submit_site.submit_directly(on, recipe, kind, options, {**needs, **more}, follow=wait or follow)
    from clew.client.submission import submission

    job = submission(
        recipe,
        overrides(settings, train__epochs=epochs, **{_workers_setting(kind): workers}),
        kind=cast("Kind", kind),
        name=output,
        dataset=dataset,
        resources=_in_units(needs),
        priority=priority,
        group=group,
        requeue=requeue,
        model=plain,
    )
    _submit(job, on, server, _Display(wait=wait, follow=follow, as_json=as_json))
    return None


@dataclass(frozen=True)
class _Display:
    """What is printed after a submission, and whether to wait."""

    wait: bool
    follow: bool
    as_json: bool


def _in_units(needs: dict[str, Any]) -> dict[str, Any]:
    """Resources with memory in bytes and times in seconds."""
    memory, wall_time = needs["memory"], needs["wall_time"]
    return {
        **needs,
        "memory": None if memory is None else int(parse_bytes(memory, "--memory")),
        "wall_time": None if wall_time is None else parse_seconds(wall_time, "--wall-time"),
    }


def _submit(job: Submission, on: str | None, server: str | None, display: _Display) -> None:
    from clew.cli.jobs.jobs import exit_code, waiting_reason, watch_job
    from clew.client.client import Client

    with Client(server) as client:
        if on is not None:
            resources = job.resources.model_copy(update={"site": submit_site.agent_site_name(on, client)})
            job = job.model_copy(update={"resources": resources})
        submitted = client.jobs.submit(job)
        if display.as_json:
            typer.echo(submitted.model_dump_json(indent=1))
        else:
            console.print(f"job {bold(submitted.id)}: {submitted.kind} {submitted.name}")
            reason = waiting_reason(client, submitted)
            if reason:
                console.print(f"[yellow]it waits: {reason}[/]")
        if display.wait or display.follow:
            raise typer.Exit(exit_code(watch_job(client, submitted.id, log=display.follow)))
        if not display.as_json:
            verb = program()
            console.print(
                f"[dim]watch it:[/] {verb} follow {submitted.id}   [dim]end it:[/] {verb} stop {submitted.id}"
            )


def _plain(recipe: str, kind: str, model: str | None, options: dict[str, Any]) -> dict[str, Any] | None:
    """The options of a training without a recipe; None for one with a recipe."""
    if bool(recipe) == (model is not None):
        raise ConfigError("name a recipe, or a model with --model; see --help for examples")
    if model is None and any(value is not None for value in options.values()):
        raise ConfigError(f"{', '.join(f'--{name}' for name in options)} go with --model")
    if model is not None and kind != "train":
        raise ConfigError(f"--kind {kind}: --model is for train")
    return None if model is None else {"model": model, **options}


def _workers_setting(kind: str) -> str:
    """The setting for the number of workers of a kind of job."""
    return {"prepare": "prepare__workers", "tune": "tune__parallel"}.get(kind, "train__workers")
