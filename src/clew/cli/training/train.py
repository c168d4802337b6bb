"""`clew train`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from clew.cli.jobs.on_site import SiteOptions, SiteWork, on_site
from clew.cli.options import Settings, bold, console, overrides, program
from clew.cli.training import train_task
from clew.errors import ConfigError, RunError
from clew.jobs.task import TrainTask

_PLAIN: Any = {"rich_help_panel": "Training without a recipe"}


def _plan(site: SiteOptions, *, detach: bool, **options: Any) -> SiteWork | None:
    """What `--on SITE` submits: the same training, which continues its run when the job is started again."""
    from clew.data.dataset import Dataset
    from clew.runs import Run
    from clew.runs.folder import next_run_path
    from clew.settings import load_settings

    task = _task(**options)
    train_task.check_source(task)
    if detach:
        raise ConfigError("--detach is for this machine: a job of --on SITE continues by itself (--no-follow)")
    settings = overrides(
        task.settings, train__dataset=task.dataset, train__workers=task.workers, train__strategy=task.strategy
    )
    config = load_settings("columns" if task.model else str(task.resume or task.recipe), settings).train
    if not site.profile.takes_jobs:
        from clew.cli.jobs.panda import submit_training

        submit_training(site, task.recipe, task.settings)
        return None
    workers = site.workers(config.processes)
    if task.resume is not None:
        run = Run.open(task.resume)
        if run.state in ("running", "finished"):
            raise RunError(f"{run.path} is {run.state}; there is nothing to resume")
        task = task.model_copy(update={"continues": True})
        return SiteWork("train", run.path, task, workers=workers, requeue=True)
    if task.model is None and not site.values["after"]:
        Dataset(config.dataset)
    source = (task.recipe or task.model or "").split(":")[0]
    output = Path(task.output or next_run_path(Path("runs"), Path(source).stem))
    if output.exists():
        raise RunError(f"{output} exists already; name another folder with --output, or remove it")
    task = task.model_copy(update={"continues": True, "output": str(output)})
    return SiteWork("train", output, task, workers=workers, requeue=True)


@on_site(_plan)
def train(
    recipe: Annotated[
        str | None, typer.Argument(help="A recipe's name or file, a YAML with settings, or a run's folder.")
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(help="What `clew prepare` made: a folder, or a place in a store.")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Processes that train together.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the data.")] = None,
    replicas: Annotated[
        int | None, typer.Option(help="Train an ensemble: so many models that differ in their seed alone.")
    ] = None,
    strategy: Annotated[
        str | None,
        typer.Option(help="allreduce, sharded, pipeline; downpour, easgd, gem, diloco, backup (with masters)."),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="With a master: where `clew worker` may join and leave meanwhile."),
    ] = None,
    output: Annotated[
        str | None, typer.Option(help="The run's folder (default: the next under runs/), or a place in a store.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL", help="Without a recipe: file.py:name, a .keras, .h5, Keras .json or .pt2 file.", **_PLAIN
        ),
    ] = None,
    train_files: Annotated[
        list[str] | None, typer.Option("--train", metavar="FILES", help="Files or globs to learn from.", **_PLAIN)
    ] = None,
    val_files: Annotated[
        list[str] | None,
        typer.Option("--val", metavar="FILES", help="To validate on (default: a fifth of --train).", **_PLAIN),
    ] = None,
    features: Annotated[str | None, typer.Option(help="Columns the model gets: X, or pt,eta,phi.", **_PLAIN)] = None,
    labels: Annotated[str | None, typer.Option(help="Columns it learns.", **_PLAIN)] = None,
    loss: Annotated[
        str | None,
        typer.Option(help="cross_entropy, binary_cross_entropy, mse, mae, huber or file.py:name.", **_PLAIN),
    ] = None,
    weight: Annotated[str | None, typer.Option(help="Event weights: an expression of columns.", **_PLAIN)] = None,
    select: Annotated[str | None, typer.Option(help="Which events: 'pt > 20 && abs(eta) < 2.5'.", **_PLAIN)] = None,
    scale: Annotated[str | None, typer.Option(help="Scale each feature: standard or min_max.", **_PLAIN)] = None,
    settings: Settings = None,
    resume: Annotated[str | None, typer.Option(metavar="RUN", help="Go on with a run that did not finish.")] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Go on in the background; `clew runs` shows it.")] = False,
    time_limit: Annotated[str | None, typer.Option(help="Stop, ready to resume, after so long: 90s, 30m, 12h.")] = None,
) -> None:
    """Train a recipe's model on a dataset.

    \b
    Examples:
      clew train tracking --dataset dataset --workers 2
      clew train my.yaml --set train.optimizer.lr=1e-3 --output runs/first
      clew train runs/first --output runs/again
      clew train tracking --time-limit 2h
      clew train tracking --workers 2 --detach
      clew train jetfeatures --replicas 100
      clew train tracking --workers 4 --strategy downpour
      clew train tracking --workers 0 --strategy easgd --listen 0.0.0.0:7700
      clew train tracking --dataset s3://bucket/dataset --set train.store.to=s3://bucket/models
      clew train --resume runs/tracking-001
      clew train tracking --workers 8 --on mycluster --nodes 2 --wall-time 4h
      clew train --model net.py:build --train 'a*.h5' --val 'b*.h5' --features X --labels Y --loss cross_entropy
      clew train --model cnn.keras --train jets.h5 --features images --labels is_signal --workers 2
      torchrun --nproc-per-node 4 --no-python clew train tracking

    Under torchrun, mpiexec or srun every process becomes a worker; otherwise --workers starts them here.

    Stopped by a time limit, SIGTERM or SIGUSR1, it writes a checkpoint and ends with exit code 75.
    """
    task = _task(
        recipe=recipe,
        dataset=dataset,
        workers=workers,
        epochs=epochs,
        replicas=replicas,
        strategy=strategy,
        listen=listen,
        output=output,
        model=model,
        train_files=train_files,
        val_files=val_files,
        features=features,
        labels=labels,
        loss=loss,
        weight=weight,
        select=select,
        scale=scale,
        settings=settings,
        resume=resume,
        time_limit=time_limit,
    )
    if detach:
        _detach(task)
    else:
        train_task.run(task)


def _task(**options: Any) -> TrainTask:
    """A task from the options of the command line."""
    return TrainTask.model_validate({name: value for name, value in options.items() if value is not None})


def _detach(task: TrainTask) -> None:
    """Start the training as a job in the background, and wait until its run exists."""
    from clew import storage
    from clew.core.log_tail import last_message
    from clew.jobs.launchers.launcher import END_STATES, find_launcher
    from clew.runs import Run
    from clew.runs.folder import next_run_path

    source = task.recipe or (task.model or "").split(":")[0]
    name = task.resume or task.output or str(next_run_path(Path("runs"), Path(source).stem))
    run = Run(Path("runs", storage.base_name(name)) if storage.is_url(name) else Path(name))
    if task.resume is None and task.output is None:
        task = task.model_copy(update={"output": str(run.path)})
    launcher, folder = find_launcher("local"), run.job_folder
    while folder.exists():  # of an earlier part of the same run
        folder = folder.with_name(f"{folder.name}+")
    records = len(list(run.records())) if task.resume else 0
    job = launcher.start(task, folder=folder)
    while len(list(run.records())) <= records:
        if launcher.state(job) in END_STATES:
            raise RunError(f"the job did not start: {last_message(job.log)} (see {job.log})")
        time.sleep(0.1)
    console.print(f"{bold(run.path)} runs in the background; it prints to {bold(job.log)}")
    console.print(f"[dim]watch it:[/] {program()} follow {run.path}   [dim]stop it:[/] {program()} stop {run.path}")
