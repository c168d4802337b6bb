"""`clew submit`."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, cast

import typer

from clew.cli.jobs import submit_site
from clew.cli.jobs.submit_options import SubmitOptions
from clew.cli.options import bold, console, overrides, printed_warnings, program, takes_options
from clew.errors import ConfigError

if TYPE_CHECKING:
    from clew.client.job import Kind, Submission


@takes_options(SubmitOptions)
def submit(options: SubmitOptions) -> None:
    """Submit a job to a server; an agent of yours, or of your group, runs it.

    \b
    Examples:
      clew submit tracking --dataset data --epochs 5 --follow
      clew submit my.yaml --set train.optimizer.lr=1e-3 --output first --cpus 4 --gpus 1 --memory 16G --wall-time 12h
      clew submit my_recipe.py --dataset /data/jets --requeue 5 --wall-time 1h
      clew submit study.yaml --kind tune --cpus 8 --priority 10
      clew submit study.yaml --kind tune --trials-as-jobs --cpus 2
      clew submit tracking --kind prepare --input root://eos.example.org//data/events --output dataset
      clew submit 12 --kind evaluate --wait
      clew submit --model net.py:build --train '/data/a*.h5' --features X --labels Y --epochs 5
      clew submit 'scale tracking --dataset /data/tracks --workers 1,2,4' --kind bench --cpus 4
      clew submit tracking --dataset /shared/data --workers 8 --nodes 2 --on mycluster
      clew submit --kind script train.py --workers 2 -- --lr 0.1
      clew submit my_recipe.py --dataset rucio:user.me:samples --store 'rucio:user.me:models?rse=SITE_DISK'

    Settings are checked here before anything is sent. A recipe or script travels with the job, with the modules of its
    folder that it imports.
    """
    options.check()
    site = options.on
    if site is not None and (options.dry_run or submit_site.goes_directly(site, options.server)):
        _submit_to_site(site, options)
    else:
        with contextlib.nullcontext() if options.as_json else printed_warnings():
            job = _submission(options)
        _submit_to_server(job, options)


def _submit_to_site(site: str, options: SubmitOptions) -> None:
    if options.kind == "script":
        submit_site.submit_script(site, options)
        return
    if options.trials_as_jobs:
        raise ConfigError(f"--trials-as-jobs needs a server; without one: clew tune run {options.recipe} --on {site}")
    if options.without_recipe or options.kind == "bench":
        verb = "train --model" if options.without_recipe else "bench"
        raise ConfigError(f"this goes to {site} only through a server; without one: clew {verb} ... --on {site}")
    training = {name: getattr(options, name) for name in ("dataset", "workers", "epochs", "settings", "output")}
    training["settings"] = [*(options.settings or ()), *_store_settings(options)]
    training |= {"input": options.input} if options.kind == "prepare" else {}
    more = {name: getattr(options, name) for name in ("requeue", "priority", "group", "dry_run")}
    resources = {**options.resources(), **more, "json": options.as_json}
    follow = options.wait or options.follow
    submit_site.submit_directly(site, options.recipe, options.kind, training, resources, follow=follow)


def _store_settings(options: SubmitOptions) -> list[str]:
    """The store of a job that no agent watches: its training writes to it."""
    if options.store is None:
        return []
    if options.kind != "train":
        raise ConfigError(f"--store: without a server only a training can store its outputs, not {options.kind}")
    from clew.storage import absolute_location

    return [f"train.store.to={absolute_location(options.store)}"]


def _submission(options: SubmitOptions) -> Submission:
    from clew.client.submission import submission

    script = options.kind == "script"
    inputs = None
    if options.input:
        from clew.cli.data.prepare import input_patterns

        inputs = input_patterns(options.input)
    workers = {} if script else {options.workers_setting: options.workers}
    return submission(
        options.recipe,
        overrides(options.settings, train__epochs=options.epochs, prepare__input=inputs, **workers),
        kind=cast("Kind", options.kind),
        name=options.output,
        dataset=options.dataset,
        store=options.store,
        resources={**options.resources(), **({"workers": options.workers} if script else {})},
        priority=options.priority,
        group=options.group,
        requeue=options.requeue,
        arguments=options.arguments or (),
        trials_as_jobs=options.trials_as_jobs,
        model=options.model_options() if options.without_recipe else None,
    )


def _submit_to_server(job: Submission, options: SubmitOptions) -> None:
    from clew.cli.jobs.jobs import exit_code, waiting_reason, watch_job
    from clew.client.client import Client

    with Client(options.server) as client:
        if options.on is not None:
            resources = job.resources.model_copy(update={"site": submit_site.agent_site_name(options.on, client)})
            job = job.model_copy(update={"resources": resources})
        submitted = client.jobs.submit(job)
        if options.as_json:
            typer.echo(submitted.model_dump_json(indent=1))
        else:
            console.print(f"job {bold(submitted.id)}: {submitted.kind} {submitted.name}")
            reason = waiting_reason(client, submitted)
            if reason:
                console.print(f"[yellow]it waits: {reason}[/]")
        if options.wait or options.follow:
            raise typer.Exit(exit_code(watch_job(client, submitted.id, log=options.follow)))
        if not options.as_json:
            clew = program()
            console.print(
                f"[dim]watch it:[/] {clew} follow {submitted.id}   [dim]end it:[/] {clew} stop {submitted.id}"
            )
