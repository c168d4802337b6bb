"""The options of `clew submit`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from clew.cli.jobs.agent import Server
from clew.cli.options import Settings
from clew.cli.training.train_options import MODEL_PANEL, ModelOptions
from clew.errors import ConfigError, nearest

_PANEL: Any = {"rich_help_panel": "What it needs"}
_KINDS = ("train", "tune", "prepare", "evaluate", "bench", "script")
_WORKERS_SETTINGS = {"prepare": "prepare__workers", "tune": "tune__parallel"}


@dataclass(frozen=True, kw_only=True)
class ResourceOptions:
    """What a job needs."""

    nodes: Annotated[int | None, typer.Option(min=1, help="Nodes (default: 1).", **_PANEL)] = None
    cpus: Annotated[int | None, typer.Option(min=1, help="Cores per worker (default: 1).", **_PANEL)] = None
    gpus: Annotated[int | None, typer.Option(min=0, help="GPUs per worker (default: none).", **_PANEL)] = None
    memory: Annotated[
        str | None, typer.Option(help="Memory per worker: 4G. A job that uses more in total is killed.", **_PANEL)
    ] = None
    wall_time: Annotated[
        str | None, typer.Option(help="Time limit: 30m, 12h. Then the job is asked to end.", **_PANEL)
    ] = None
    container: Annotated[
        str | None,
        typer.Option(metavar="IMAGE", help="Run it in this container image: clew.sif, a name, a URL.", **_PANEL),
    ] = None

    def resources(self) -> dict[str, Any]:
        """The resources by name, as they were typed."""
        names = ("nodes", "cpus", "gpus", "memory", "wall_time", "container")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, kw_only=True)
class SubmitOptions(ModelOptions, ResourceOptions):
    """All options of `clew submit`."""

    recipe: Annotated[
        str,
        typer.Argument(
            help="A recipe's name or file, a YAML, a run's folder; for evaluate a job; for bench its words; "
            "for script a Python or shell file.",
            show_default=False,
        ),
    ] = ""
    arguments: Annotated[
        list[str] | None, typer.Argument(help="For script: its own arguments, after --.", show_default=False)
    ] = None
    model: Annotated[
        str | None, typer.Option(help="Without a recipe: file.py:name; the file travels with the job.", **MODEL_PANEL)
    ] = None
    kind: Annotated[str, typer.Option(help="train, tune, prepare, evaluate, bench or script.")] = "train"
    dataset: Annotated[
        str | None, typer.Option(help="A dataset: its folder, its key, or its place in a store (rucio:, s3://, ...).")
    ] = None
    input: Annotated[
        list[str] | None,
        typer.Option(metavar="FILES", help="For prepare: files or globs, also in a store. Repeatable."),
    ] = None
    store: Annotated[
        str | None,
        typer.Option(metavar="LOCATION", help="Put model, report and metrics there: rucio:, s3://, root://, a folder."),
    ] = None
    workers: Annotated[int | None, typer.Option(min=1, help="Processes that work together.")] = None
    epochs: Annotated[int | None, typer.Option(min=1, help="Passes over the data.")] = None
    settings: Settings = None
    output: Annotated[str | None, typer.Option(metavar="NAME", help="The name of the job and of its run.")] = None
    on: Annotated[
        str | None,
        typer.Option(metavar="SITE", help="By an agent of this site; without a server: submit it there."),
    ] = None
    dry_run: Annotated[bool, typer.Option("--dry-run", help="With --on: print what would be submitted.")] = False
    priority: Annotated[int, typer.Option(min=-100, max=100, help="Jobs with higher numbers start first.")] = 0
    group: Annotated[str | None, typer.Option(help="This group's agents may run it, its members see it.")] = None
    requeue: Annotated[
        int,
        typer.Option(min=0, help="Continue up to N times when it stopped early (exit code 75) or its agent was lost."),
    ] = 0
    trials_as_jobs: Annotated[
        bool,
        typer.Option(
            "--trials-as-jobs", help="For tune: every trial (or pack) is a job for any agent; --cpus etc. are for one."
        ),
    ] = False
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it ends; the exit code is the job's.")] = False
    follow: Annotated[bool, typer.Option("--follow", help="The same, and print its output.")] = False
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False
    server: Server = None

    def check(self) -> None:
        """Check the options against each other.

        Raises:
            ConfigError: An unknown kind, or options that do not go together.
        """
        if self.kind not in _KINDS:
            raise ConfigError(f"--kind {self.kind}: no such kind{nearest(self.kind, _KINDS)}")
        if sum((bool(self.recipe), self.model is not None, self.estimator is not None)) != 1:
            raise ConfigError("name a recipe, a model with --model, or an estimator with --estimator; see --help")
        if self.arguments and self.kind != "script":
            raise ConfigError(f"{self.arguments[0]}: only --kind script takes arguments after the first")
        if self.kind == "script" and self.epochs is not None:
            raise ConfigError("--epochs: a script takes its own arguments, after --")
        files = self.file_options()
        if not self.without_recipe and any(value is not None for value in files.values()):
            raise ConfigError(f"{', '.join(f'--{name}' for name in files)} go with --model or --estimator")
        if self.without_recipe and self.kind != "train":
            raise ConfigError(f"--kind {self.kind}: --model and --estimator are for train")
        if self.trials_as_jobs and self.kind != "tune":
            raise ConfigError(f"--trials-as-jobs goes with --kind tune, not with {self.kind}")
        if self.input and self.kind != "prepare":
            raise ConfigError(f"--input goes with --kind prepare, not with {self.kind}; a training takes --dataset")
        if self.dry_run and self.on is None:
            raise ConfigError("--dry-run goes with --on SITE")

    def file_options(self) -> dict[str, Any]:
        """The files, columns, loss and scaling of a training without a recipe."""
        return {"train": self.train_files, "val": self.val_files, **self.column_options()}

    @property
    def without_recipe(self) -> bool:
        """Whether a model or an estimator is trained without a recipe."""
        return self.model is not None or self.estimator is not None

    def model_options(self) -> dict[str, Any]:
        """The options of a training without a recipe."""
        return {"model": self.model, "estimator": self.estimator, **self.file_options()}

    @property
    def workers_setting(self) -> str:
        """The setting for the number of workers of this kind of job."""
        return _WORKERS_SETTINGS.get(self.kind, "train__workers")
