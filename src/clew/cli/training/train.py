"""`clew train`."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from clew.cli.jobs.on_site import SiteOptions, SiteWork, on_site
from clew.cli.options import Settings, bold, console, overrides, program, seconds_in
from clew.cli.transfer_progress import fetching
from clew.core.config import to_data
from clew.errors import ConfigError, RunError
from clew.jobs.lease import Lease
from clew.jobs.rank_info import current_rank as launched

if TYPE_CHECKING:
    from clew.runs import Run


_ONE_OF = "name a recipe to train, a run to go on with (--resume RUN), or a model (--model)"
_PLAIN: Any = {"rich_help_panel": "Training without a recipe"}


def _plan(
    asked: SiteOptions,
    *,
    recipe: str | None,
    dataset: str | None,
    workers: int | None,
    epochs: int | None,
    strategy: str | None,
    output: str | None,
    model: str | None,
    settings: list[str] | None,
    resume: str | None,
    **others: Any,
) -> SiteWork | None:
    """What `--on SITE` hands in: the same command, which goes on with its run when the job is begun again."""
    from clew.data.dataset import Dataset
    from clew.runs import Run
    from clew.runs.folder import next_name
    from clew.settings import load_settings

    if sum(given is not None for given in (recipe, resume, model)) != 1:
        raise ConfigError(_ONE_OF)
    if others["detach"]:
        raise ConfigError("--detach is for this machine: a job of --on SITE goes on by itself (--no-follow)")
    chosen = overrides(settings, train__dataset=dataset, train__workers=workers, train__strategy=strategy)
    config = load_settings("columns" if model else str(resume or recipe), chosen).train
    if asked.site.scheduler == "panda":
        from clew.cli.jobs.panda import hand_in_training

        hand_in_training(asked, recipe, settings or [])
        return None
    ranks = asked.ranks(config.processes)
    if resume is not None:
        run = Run.open(resume)
        if run.state in ("running", "finished"):
            raise RunError(f"{run.path} is {run.state}; there is nothing to resume")
        return SiteWork("train", run.path, ranks, ["--again"], requeue=True)
    if model is None and not asked.given["after"]:
        Dataset(config.dataset)
    makes = Path(output or next_name(Path("runs"), Path((recipe or model or "").split(":")[0]).stem))
    if makes.exists():
        raise RunError(f"{makes} exists already; name another folder with --output, or remove it")
    added = ["--again", *([] if output else ["--output", str(makes)])]
    return SiteWork("train", makes, ranks, added, requeue=True)


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
    lease: Annotated[str | None, typer.Option(hidden=True, help="The file by which a study hands out a trial.")] = None,
    pack: Annotated[str | None, typer.Option(hidden=True, help="A file that names runs to be trained at once.")] = None,
    grid: Annotated[
        str | None, typer.Option(hidden=True, metavar="FILES", help="In a job of PanDA's: its files, by commas.")
    ] = None,
    again: Annotated[
        bool,
        typer.Option(
            "--again", hidden=True, help="Go on with --output where it is there; one that has finished is no error."
        ),
    ] = False,
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
    from clew.cli.runs.follow import following, preparing

    if pack is not None:
        from clew.cli.training import train_pack

        train_pack.run(Path(pack))
        return
    if detach:
        _detach(recipe or (model or "").split(":")[0], output, resume)
        return

    if grid is not None:
        _on_grid(str(recipe), settings, grid)
        return

    minutes = None if time_limit is None else seconds_in(time_limit, "--time-limit") / 60
    if sum(given is not None for given in (recipe, resume, model)) != 1:
        raise ConfigError(_ONE_OF)
    columns = {"features": features, "labels": labels, "loss": loss, "weight": weight, "select": select}
    columns["scale"] = scale
    if model is None and any(given is not None for given in (*columns.values(), train_files, val_files)):
        raise ConfigError(
            "--train, --val, --features, --labels, --loss, --weight, --select and --scale go with --model"
        )
    held = None if lease is None else Lease(Path(lease))
    if again and resume is None and output is not None and _begun(Path(output)):
        resume, dataset, workers, epochs, output, strategy, listen, settings = output, *[None] * 7
    # whoever gave a lease watches the records
    with following() if held is None else contextlib.nullcontext(_begins) as begun, _warnings(), fetching():
        if resume is not None:
            others = [dataset, epochs, replicas, output, strategy, listen, *(settings or ())]
            run = _resume(resume, workers, minutes, begun, held, others, again=again)
        else:
            from clew.settings import load_settings
            from clew.training.api import train as work

            options: dict[str, Any] = {
                "dataset": dataset,
                "workers": workers,
                "epochs": epochs,
                "replicas": replicas,
                "time_limit_minutes": minutes,
            }
            options |= {"strategy": strategy, "central__listen": listen}
            chosen = overrides(settings, **{f"train__{name}": value for name, value in options.items()})
            if model is not None:
                given = load_settings("columns", chosen)
                asked: dict[str, Any] = {name: value for name, value in columns.items() if value is not None}
                chosen_model = given.recipe.config.model
                own = {**to_data(given.train), "arguments": chosen_model.arguments}
                own |= {"outputs": chosen_model.outputs, "penalties": chosen_model.penalties}
                del own["dataset"]
                with preparing() as show:
                    run = work(model, train_files, val_files, output=output, begun=begun, prepared=show, **own, **asked)
            else:
                loaded = load_settings(str(recipe), chosen)
                run = work(loaded.recipe, None, loaded.train, output=output, begun=begun, lease=held)
    if launched().rank == 0 and run.replicas():
        _tell_ensemble(run)
    elif launched().rank == 0:
        console.print(f"{bold(run.path)} finished. Next: {program()} evaluate {bold(run.path)}")


def _begins(run: Run) -> None:
    console.print(f"run {bold(run.path)}")


def _tell_ensemble(run: Run) -> None:
    """Mean and spread of every metric."""
    from clew.cli.options import table
    from clew.training.packs.replicas import spread

    found = spread(run)
    rows = [(name, f"{mean:.5g}", f"{own:.2g}") for name, (mean, own, _) in found.items()]
    console.print(table(("metric", "mean", "spread"), rows, right=(1, 2)))
    members = max(count for _, _, count in found.values())
    end = (run.end() or {}).get("message")
    console.print(f"{bold(run.path)} finished: {members} models{f'; {end}' if end else ''}")
    console.print(f"Next: {program()} predict {bold(run.path)} --output FILE.h5   (mean and spread of every event)")


@contextlib.contextmanager
def _warnings() -> Iterator[None]:
    """What the library warns of, as lines like all others."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: console.print(f"[yellow]clew: {escape(str(message))}[/]")
        yield


def _on_grid(recipe: str, settings: list[str] | None, files: str) -> None:
    """The job of a task that `clew train --on` made for PanDA: all in the working folder."""
    from clew.settings import load_settings
    from clew.tuning import panda

    run = panda.trained(load_settings(recipe, settings or ()), files.split(",") if files else [], folder=Path.cwd())
    console.print(f"{bold(run.path)} finished; model.safetensors and userJobMetadata.json are beside it")


def _begun(path: Path) -> bool:
    """Whether a job that is begun again has something to go on with; a run that had kept nothing yet is removed."""
    from clew.runs import Run

    run = Run(path)
    if run.states():
        return True
    if launched().rank == 0 and run.path.exists():
        shutil.rmtree(run.path)
    return False


def _detach(what: str, output: str | None, resume: str | None) -> None:
    """Start the same command as a job of its own, and wait until its run is there."""
    from clew import storage
    from clew.core.log_tail import last_message
    from clew.jobs.launchers.launcher import END_STATES, find_launcher
    from clew.runs import Run
    from clew.runs.folder import next_name

    named = resume or output or str(next_name(Path("runs"), Path(what).stem))
    run = Run(Path("runs", storage.base_name(named)) if storage.is_url(named) else Path(named))
    arguments = [argument for argument in sys.argv[1:] if argument != "--detach"]
    if resume is None and output is None:
        arguments += ["--output", str(run.path)]
    launcher, folder = find_launcher("local"), run.job_folder
    while folder.exists():  # of an earlier part of the same run
        folder = folder.with_name(f"{folder.name}+")
    known = len(list(run.records())) if resume else 0
    job = launcher.start(arguments, folder=folder)
    while len(list(run.records())) <= known:
        if launcher.state(job) in END_STATES:
            raise RunError(f"the job did not begin: {last_message(job.log)} (see {job.log})")
        time.sleep(0.1)
    again = f"{program()} runs"
    console.print(f"{bold(run.path)} runs in the background; it prints to {bold(job.log)}")
    console.print(f"[dim]watch it:[/] {again} follow {run.path}   [dim]stop it:[/] {again} stop {run.path}")


def _resume(
    name: str,
    workers: int | None,
    minutes: float | None,
    begun: Callable[[Run], None],
    lease: Lease | None,
    others: list[Any],
    *,
    again: bool = False,
) -> Run:
    """Only the number of workers and the time limit may differ from what the run began with."""
    if any(other is not None for other in others):
        raise ConfigError("--resume goes on with the run's own settings; only --workers and --time-limit can be given")
    from clew.storage import models
    from clew.training.api import resume

    asked: dict[str, Any] = {"workers": workers, "time_limit_minutes": minutes}
    given = {key: value for key, value in asked.items() if value is not None}
    return resume(models.open_run(name), begun=begun, lease=lease, again=again, **given)
