"""The options of `clew train`. `clew submit` has those of trainings without a recipe too."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from clew.cli.options import Settings
from clew.jobs.task import TrainTask

MODEL_PANEL: Any = {"rich_help_panel": "Training without a recipe"}


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """A training of a model on columns of files."""

    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Without a recipe: file.py:name (also a LightningModule), a .keras, .h5, Keras .json or .pt2 file.",
            **MODEL_PANEL,
        ),
    ] = None
    estimator: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Boosted trees: xgboost, lightgbm, module:Class of scikit-learn, or file.py:name.",
            **MODEL_PANEL,
        ),
    ] = None
    train_files: Annotated[
        list[str] | None,
        typer.Option(
            "--train", metavar="FILES", help="Files or globs to train on, or file.py:DataModule.", **MODEL_PANEL
        ),
    ] = None
    val_files: Annotated[
        list[str] | None,
        typer.Option("--val", metavar="FILES", help="To validate on (default: a fifth of --train).", **MODEL_PANEL),
    ] = None
    features: Annotated[
        str | None, typer.Option(help="Input columns of the model: X, or pt,eta,phi.", **MODEL_PANEL)
    ] = None
    labels: Annotated[str | None, typer.Option(help="Columns with the true values.", **MODEL_PANEL)] = None
    loss: Annotated[
        str | None,
        typer.Option(help="cross_entropy, binary_cross_entropy, mse, mae, huber or file.py:name.", **MODEL_PANEL),
    ] = None
    weight: Annotated[str | None, typer.Option(help="Event weights: an expression of columns.", **MODEL_PANEL)] = None
    select: Annotated[
        str | None, typer.Option(help="Selection of events: 'pt > 20 && abs(eta) < 2.5'.", **MODEL_PANEL)
    ] = None
    scale: Annotated[str | None, typer.Option(help="Scale each feature: standard or min_max.", **MODEL_PANEL)] = None

    def column_options(self) -> dict[str, str | None]:
        """The options that name columns, the loss and the scaling."""
        names = ("features", "labels", "loss", "weight", "select", "scale")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, kw_only=True)
class TrainOptions(ModelOptions):
    """All options of `clew train` for this machine."""

    recipe: Annotated[str | None, typer.Argument(help="A recipe's name or file, a YAML with settings, or a run.")] = (
        None
    )
    dataset: Annotated[
        str | None, typer.Option(help="A dataset made by `clew prepare`: a folder, or a URL in a store.")
    ] = None
    workers: Annotated[int | None, typer.Option(help="Processes that train together.")] = None
    epochs: Annotated[int | None, typer.Option(help="Passes over the data.")] = None
    lr: Annotated[float | None, typer.Option(help="Learning rate (train.optimizer.lr).")] = None
    batch_size: Annotated[
        str | None,
        typer.Option(metavar="N|auto", help="Samples per step, over all workers; auto measures the fastest."),
    ] = None
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, cuda:1 or mps (default: the accelerator of this machine).")
    ] = None
    start_from: Annotated[
        str | None,
        typer.Option("--from", metavar="RUN|MODEL", help="Start from weights: a run, a stored model, a .safetensors."),
    ] = None
    replicas: Annotated[
        int | None, typer.Option(help="Train an ensemble: this number of models, which differ in their seed only.")
    ] = None
    strategy: Annotated[
        str | None,
        typer.Option(help="allreduce, sharded, pipeline; downpour, easgd, gem, diloco, backup (with masters)."),
    ] = None
    listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="With a master: address where `clew worker` can join at any time."),
    ] = None
    output: Annotated[
        str | None, typer.Option(help="Folder of the run (default: the next under runs/), or a URL in a store.")
    ] = None
    settings: Settings = None
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="RUN", help="Resume a run that did not finish; with --epochs N train a finished one longer."
        ),
    ] = None
    current_code: Annotated[
        bool, typer.Option("--current-code", help="With --resume: use today's code, not the code that the run saved.")
    ] = False
    detach: Annotated[bool, typer.Option("--detach", help="Train in the background; `clew runs` shows it.")] = False
    time_limit: Annotated[str | None, typer.Option(help="Stop after this time, ready to resume: 90s, 30m, 12h.")] = None

    def task(self) -> TrainTask:
        """The training as a task; `detach` is not part of it."""
        values = {name: value for name, value in dataclasses.asdict(self).items() if value is not None}
        del values["detach"]
        return TrainTask.model_validate(values)
