"""`clew submit`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from clew.cli.jobs.agent import Server
from clew.cli.options import Settings, bold, console, overrides, parse_bytes, parse_seconds, program
from clew.errors import ConfigError, nearest

if TYPE_CHECKING:
    from clew.client.job import Kind

_KINDS = ("train", "tune", "prepare", "evaluate", "bench")
_NEEDS: Any = {"rich_help_panel": "What it needs"}
_PLAIN: Any = {"rich_help_panel": "Without a recipe, as `clew train --model`"}
Json = Annotated[bool, typer.Option("--json", help="For other programs: all that is known.")]


def submit(
    recipe: Annotated[
        str,
        typer.Argument(
            help="A recipe's name or file, a YAML, or a run's folder; to evaluate: a job's number; for bench: words.",
            show_default=False,
        ),
    ] = "",
    kind: Annotated[str, typer.Option(help="train, tune, prepare, evaluate or bench.")] = "train",
    dataset: Annotated[str | None, typer.Option(help="A dataset's folder, or its key.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes that work together.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Passes over the data.")] = None,
    model: Annotated[str | None, typer.Option(help="file.py:name; the file goes along.", **_PLAIN)] = None,
    train_files: Annotated[
        list[str] | None, typer.Option("--train", metavar="FILES", help="Files or globs to learn from.", **_PLAIN)
    ] = None,
    val_files: Annotated[
        list[str] | None, typer.Option("--val", metavar="FILES", help="Default: a fifth of --train.", **_PLAIN)
    ] = None,
    features: Annotated[str | None, typer.Option(help="Columns the model gets.", **_PLAIN)] = None,
    labels: Annotated[str | None, typer.Option(help="Columns it learns.", **_PLAIN)] = None,
    loss: Annotated[str | None, typer.Option(help="As that of `clew train`.", **_PLAIN)] = None,
    weight: Annotated[str | None, typer.Option(help="Event weights.", **_PLAIN)] = None,
    select: Annotated[str | None, typer.Option(help="Which events.", **_PLAIN)] = None,
    scale: Annotated[str | None, typer.Option(help="standard or min_max.", **_PLAIN)] = None,
    settings: Settings = None,
    output: Annotated[str | None, typer.Option(metavar="NAME", help="What the job and its run are called.")] = None,
    cpus: Annotated[int | None, typer.Option(min=1, help="Default: one a process.", **_NEEDS)] = None,
    gpus: Annotated[int | None, typer.Option(min=0, help="Default: none.", **_NEEDS)] = None,
    memory: Annotated[str | None, typer.Option(help="At most: 4G. It is ended if it takes more.", **_NEEDS)] = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="Default: 1.", **_NEEDS)] = None,
    wall: Annotated[str | None, typer.Option(help="At most: 90s, 30m, 12h. Then it is asked to end.", **_NEEDS)] = None,
    on: Annotated[
        str | None, typer.Option(metavar="SITE", help="By an agent of this site; without a server: hand it in there.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="With --on: print what the site would get.")] = False,
    priority: Annotated[int, typer.Option(min=-100, max=100, help="The higher, the sooner.")] = 0,
    group: Annotated[str | None, typer.Option(help="Let this group's agents run it, its members see it.")] = None,
    requeue: Annotated[
        int, typer.Option(min=0, help="Go on so many times when it stopped early (exit code 75) or its agent was lost.")
    ] = 0,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for its end; the exit code is the job's.")] = False,
    follow: Annotated[bool, typer.Option("--follow", help="The same, and show what it prints.")] = False,
    as_json: Json = False,
    server: Server = None,
) -> None:
    """Hand a job to a server; an agent of yours, or of your group's, runs it.

    \b
    Examples:
      clew submit tracking --dataset data --epochs 5 --follow
      clew submit my.yaml --set train.optimizer.lr=1e-3 --output first --cpus 4 --gpus 1 --memory 16G --wall 12h
      clew submit my_recipe.py --dataset /data/jets --requeue 5 --wall 1h
      clew submit study.yaml --kind tune --cpus 8 --priority 10
      clew submit tracking --kind prepare --set prepare.input=/data/events --output dataset
      clew submit 12 --kind evaluate --wait
      clew submit --model net.py:build --train '/data/a*.h5' --features X --labels Y --epochs 5
      clew submit 'scale tracking --dataset /data/tracks --workers 1,2,4' --kind bench --cpus 4
      clew submit tracking --dataset /shared/data --workers 8 --nodes 2 --on mycluster

    Settings are checked here before anything is sent. A recipe in a file goes along with the job.
    """
    if kind not in _KINDS:
        raise ConfigError(f"--kind {kind}: there is no such kind{nearest(kind, _KINDS)}")
    given = {"features": features, "labels": labels, "loss": loss, "weight": weight, "select": select, "scale": scale}
    plain = _plain(recipe, kind, model, {"train": train_files, "val": val_files, **given})
    if dry_run and on is None:
        raise ConfigError("--dry-run goes with --on SITE")
    from clew.cli.jobs import submit_site
    from clew.cli.jobs.jobs import ended, waits, watch
    from clew.client.client import Client
    from clew.client.submission import submission

    needs: dict[str, Any] = {"cpus": cpus, "gpus": gpus, "nodes": nodes}
    needs["memory"] = None if memory is None else int(parse_bytes(memory, "--memory"))
    needs["wall"] = None if wall is None else parse_seconds(wall, "--wall")
    if on is not None and (dry_run or submit_site.direct(on, server)):
        if model is not None or kind == "bench":
            verb = "train --model" if model is not None else "bench"
            raise ConfigError(f"this goes to {on} only through a server; without one: clew {verb} ... --on {on}")
        words = {"--dataset": dataset, "--workers": workers, "--epochs": epochs, "--set": settings, "--output": output}
        more = {"requeue": requeue, "priority": priority, "group": group, "json": as_json, "dry_run": dry_run}
        return submit_site.hand_in(on, recipe, kind, words, {**needs, **more}, follow=wait or follow)
    chosen = overrides(settings, train__epochs=epochs, **{_workers(kind): workers})
    job = submission(
        recipe,
        chosen,
        kind=cast("Kind", kind),
        name=output,
        dataset=dataset,
        resources=needs,
        priority=priority,
        group=group,
        requeue=requeue,
        plain=plain,
    )
    with Client(server) as client:
        if on is not None:
            there = job.resources.model_copy(update={"site": submit_site.known_as(on, client)})
            job = job.model_copy(update={"resources": there})
        made = client.jobs.submit(job)
        if as_json:
            typer.echo(made.model_dump_json(indent=1))
        else:
            console.print(f"job {bold(made.id)}: {made.kind} {made.name}")
            why = waits(client, made)
            if why:
                console.print(f"[yellow]it waits: {why}[/]")
        if wait or follow:
            raise typer.Exit(ended(watch(client, made.id, log=follow)))
        if not as_json:
            again = program()
            console.print(
                f"[dim]watch it:[/] {again} logs {made.id} --follow   [dim]end it:[/] {again} cancel {made.id}"
            )
    return None


def _plain(recipe: str, kind: str, model: str | None, given: dict[str, Any]) -> dict[str, Any] | None:
    """What was said instead of a recipe, if it was."""
    if bool(recipe) == (model is not None):
        raise ConfigError("name a recipe, or a model with --model; see --help for examples")
    if model is None and any(value is not None for value in given.values()):
        raise ConfigError(f"{', '.join(f'--{name}' for name in given)} go with --model")
    if model is not None and kind != "train":
        raise ConfigError(f"--kind {kind}: --model is for train")
    return None if model is None else {"model": model, **given}


def _workers(kind: str) -> str:
    return {"prepare": "prepare__workers", "tune": "tune__parallel"}.get(kind, "train__workers")
