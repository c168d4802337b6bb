"""`clew train`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from clew.cli.jobs.on_site import SiteOptions, SiteWork, on_site
from clew.cli.options import bold, console, program, takes_options
from clew.cli.training import train_task
from clew.cli.training.train_options import TrainOptions
from clew.errors import ConfigError, RunError
from clew.jobs.task import TrainTask


def _plan(site: SiteOptions, **options: Any) -> SiteWork | None:
    """The job of `--on SITE`: the same training, which continues its run when the job is started again."""
    from clew.data.dataset import Dataset
    from clew.runs import Run
    from clew.runs.folder import next_run_path
    from clew.runs.untrained import remove_untrained
    from clew.settings import load_settings

    task = TrainOptions(**options).task()
    train_task.check_source(task)
    if options["detach"]:
        raise ConfigError("--detach is for this machine: a job of --on SITE continues by itself (--no-follow)")
    settings = train_task.all_settings(task)
    config = load_settings(
        "columns" if task.model or task.estimator else str(task.resume or task.recipe), settings
    ).train
    if not site.profile.takes_jobs:
        from clew.cli.jobs.panda import training_work

        return training_work(task)
    workers = site.workers(config.processes)
    if task.resume is not None:
        run = Run.open(task.resume)
        if run.state == "running" or (run.state == "finished" and task.epochs is None):
            raise RunError(f"{run.path} is {run.state}; there is nothing to resume")
        task = task.model_copy(update={"continues": True})
        return SiteWork("train", run.path, task, workers=workers, requeue=True)
    if task.recipe is not None and not site.values["after"]:
        Dataset(config.dataset)
    source = (task.recipe or task.model or task.estimator or "").split(":")[0]
    output = Path(task.output or next_run_path(Path("runs"), Path(source).stem))
    remove_untrained(output)
    if output.exists():
        raise RunError(f"{output} exists already; name another folder with --output, or remove it")
    task = task.model_copy(update={"continues": True, "output": str(output)})
    return SiteWork("train", output, task, workers=workers, requeue=True)


@on_site(_plan)
@takes_options(TrainOptions)
def train(options: TrainOptions) -> None:
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
      clew train --resume tracking-001
      clew train --resume tracking-001 --epochs 20
      clew train tracking --from tracking-001 --lr 1e-4 --batch-size 128 --device cuda:1
      clew train tracking --workers 8 --on mycluster --nodes 2 --wall-time 4h
      clew train --model net.py:build --train 'a*.h5' --val 'b*.h5' --features X --labels Y --loss cross_entropy
      clew train --estimator xgboost --train 'jets*.root' --features pt,eta,mass --labels is_top --weight mc_weight
      clew train --model cnn.keras --train jets.h5 --features images --labels is_signal --workers 2
      torchrun --nproc-per-node 4 --no-python clew train tracking

    Under torchrun, mpiexec or srun every process is a worker; otherwise --workers starts processes on this machine.

    On a time limit, SIGTERM or SIGUSR1 the training writes a checkpoint and exits with code 75. On Ctrl-C it does the
    same, with code 130; a second Ctrl-C stops it at once.
    """
    task = options.task()
    if options.detach:
        _detach(task)
    else:
        train_task.run(task)


def _detach(task: TrainTask) -> None:
    """Start the training as a job in the background, and wait until its run exists."""
    from clew import storage
    from clew.core.log_tail import last_message
    from clew.jobs.launchers.launcher import END_STATES, find_launcher
    from clew.runs import Run
    from clew.runs.folder import find_run_path, next_run_path

    source = task.recipe or (task.model or task.estimator or "").split(":")[0]
    name = task.resume or task.output or str(next_run_path(Path("runs"), Path(source).stem))
    run = Run(Path("runs", storage.base_name(name)) if storage.is_url(name) else find_run_path(name))
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
