"""`clew.train` and `resume`: from a recipe and a dataset to a run.

`train` checks the settings and describes the run's folder. `clew.training.launch` creates it and starts the processes.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Unpack

from clew import storage
from clew.core.config import Document, Section, to_data, validate, with_defaults
from clew.core.files import write_text
from clew.data.dataset import Dataset
from clew.errors import ConfigError, RunError
from clew.jobs.lease import Lease, sole_attempt
from clew.jobs.worker_process import check_not_in_worker
from clew.models import loading
from clew.models.columns import Columns, InputColumns, warn_about_scale
from clew.recipe import Recipe, resolve
from clew.runs import Run
from clew.runs.console_log import captured_console
from clew.runs.environment import capture
from clew.runs.folder import RUNS, next_run_path
from clew.runs.live_view import RunView, view_for_python
from clew.storage import models
from clew.training.checks import (
    check_device,
    check_has_loss,
    check_loadable,
    check_own_optimizers,
    check_same_dataset,
    check_splits,
)
from clew.training.chosen_loss import with_chosen_loss
from clew.training.config import TrainConfig
from clew.training.launch import run_training
from clew.training.launch_context import LaunchContext
from clew.training.model_recipe import TrainingData, dataset_for, is_model, recipe_for, run_name
from clew.training.run_code import save_code, warn_about_dataset
from clew.training.start_weights import find_weights
from clew.training.train_settings import TrainSettings, named_settings, with_optimizer
from clew.training.training_start import TrainingStart

_MODEL_SETTINGS = ("outputs", "penalties", "estimator", "negative_weights", "batch")
"""Settings of `clew.models.columns.ModelSource` that are arguments of `train`."""


@named_settings
def train(
    recipe: str | Path | Recipe | type[Recipe] | Callable[..., Any] | None = None,
    dataset: Dataset | TrainingData | None = None,
    val: TrainingData | None = None,
    *,
    config: TrainConfig | Mapping[str, Any] | None = None,
    output: str | Path | None = None,
    progress: bool | RunView | None = None,
    on_start: Callable[[Run], None] | None = None,
    **settings: Unpack[TrainSettings],
) -> Run:
    """Train a model and return the run.

    There are two ways to call it. With a recipe: `clew.train("tracking", "dataset", epochs=5)`. With a plain model and
    plain data: `clew.train(model, train_data, val_data, features="X", labels="Y")`, or with `estimator="xgboost"`.

    Args:
        recipe: A recipe (its name, its file, its class or an object), or a model. A model is an `nn.Module`, a Keras
            model, an estimator of xgboost, lightgbm or scikit-learn, a function that makes one of them,
            `"net.py:build"`, a Keras file (.keras, .h5, .json) or an exported program (.pt2).
        dataset: With a recipe: a prepared dataset or its folder (default: the one in the settings). With a model: the
            training data, as files, a `clew.Table`, arrays by name, a data frame or a tuple (X, y).
        val: With a model: the validation data, in the same forms. Default: one fifth of the training data.
        config: Settings of the training. Default: the defaults of the recipe.
        output: Folder of the run (default: the next free one under `runs/`), or a location in a store (`s3://...`) to
            which the run is copied when it has finished.
        progress: Whether to show the training while it runs: as lines and a bar in a terminal, as HTML in a notebook.
            Default: if this is a terminal or a notebook. True also prints lines to a file or pipe.
        on_start: Called with the run when its folder exists, before the training starts.
        epochs: Number of passes over the training data.
        batch_size: Samples per step, over all workers together; "auto" measures the fastest size.
        lr: Learning rate of the optimiser (`optimizer.lr`).
        workers: Number of training processes. Under torchrun, mpiexec or srun their number is used.
        strategy: How workers combine their updates: "allreduce", "sharded", "pipeline", "downpour", "easgd", "gem",
            "diloco" or "backup".
        device: Where to compute: "cpu", "cuda", "cuda:1", "mps". Default: the accelerator of this machine, or the CPU.
        precision: Number format of the forward pass: "float32", "bf16" or "fp16".
        seed: Seed of the initial weights and of the order of the samples.
        **settings: Any other setting of `TrainConfig`, for example `schedule={"name": "cosine"}`, `replicas=100` (an
            ensemble) or `start_from=run` (weights to start from). With a model also `features`, `labels`, `weight`,
            `select`, `scale`, `line`, `loss`, `estimator`. Settings replace values in `config`; see `TrainSettings`.

    Returns:
        The finished run. `run.replicas()` are the members of an ensemble.

    Raises:
        UserError: Something in the recipe, the data or the settings is wrong.
        StoppedError: The run was stopped; it can be resumed.
        WorkerError: A process died. The run's folder holds everything up to then.

    Example:
        >>> import clew, numpy as np
        >>> from torch import nn
        >>> x = np.random.default_rng(0).normal(size=(200, 2)).astype(np.float32)
        >>> y = x.sum(axis=1)
        >>> run = clew.train(nn.Linear(2, 1), (x, y), epochs=2, lr=0.01, output="runs/sum")
        >>> run.state
        'finished'
    """
    return TrainingRequest(recipe, dataset, val, config, output, {**settings}).run(progress, on_start)


@dataclass(frozen=True)
class TrainingRequest:
    """The arguments of `train`."""

    recipe: Any
    dataset: Any = None
    val: Any = None
    config: TrainConfig | Mapping[str, Any] | None = None
    output: str | Path | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def run(
        self,
        progress: bool | RunView | None = None,
        on_start: Callable[[Run], None] | None = None,
        lease: Lease | None = None,
    ) -> Run:
        """Train, and return the run.

        Args:
            progress: See `train`.
            on_start: See `train`.
            lease: The lease under which this run was assigned to the process. The run renews it, and stops if asked to.
        """
        check_not_in_worker("clew.train")
        output = self.output
        context = LaunchContext.join(RUNS if output is None or storage.is_url(str(output)) else Path(output).parent)
        with captured_console(), contextlib.closing(_view(progress, context, lease)) as view:
            folder, start = self._start(context, view, lease)
            data = Dataset(start.config.dataset)
            check_splits(data)
            if context.place.rank == 0:
                warn_about_dataset(start.recipe, data)
                warn_about_scale(start.recipe, data)
            recipe, note = with_chosen_loss(start.recipe, data)
            config = _estimator_settings(recipe, start.config) if recipe.has_estimator else start.config
            start = replace(start, recipe=recipe, config=config)

            def make() -> Run:
                path = Path(folder) if folder else next_run_path(RUNS, _default_name(start.recipe))
                settings = run_settings(start.recipe, start.config)
                with sole_attempt(path, lease):
                    run = Run.create(path, config=settings, environment=capture())
                write_text(run.dataset_file, (data.path / "manifest.json").read_text())
                save_code(run, start.recipe)
                _announce(run, view, on_start)
                if note:
                    with run.writer("rank-0") as writer:
                        writer.write("note", message=note)
                return run

            return _store(run_training(make, start, context, view.close), start.config, context)

    def _start(
        self, context: LaunchContext, view: RunView, lease: Lease | None
    ) -> tuple[str | Path | None, TrainingStart]:
        """Return the folder of the run (None for the next free one), the recipe and the checked settings."""
        recipe, dataset, settings = self.recipe, self.dataset, with_optimizer(self.settings)
        if recipe is None and settings.get("estimator") is None:
            raise ConfigError("name a recipe, a model or an estimator to train")
        if is_model(recipe) or recipe is None:
            recipe, dataset, settings = _from_model(recipe, (dataset, self.val), settings, context, view)
        elif self.val is not None:
            raise ConfigError("validation data can be given only with a model; a recipe's dataset holds its own split")
        recipe = resolve(recipe)
        folder, config = _settings(recipe, dataset, self.config, self.output, settings)
        config = context.with_workers(config)
        check_device(config.device, context.place.local_rank)
        check_loadable(recipe, config.workers)
        check_own_optimizers(recipe, config)
        check_has_loss(recipe)
        return folder, TrainingStart(recipe, config, lease=lease)


def resume(
    run: Run | str | Path,
    *,
    recipe: Recipe | type[Recipe] | str | Callable[..., Any] | None = None,
    on_start: Callable[[Run], None] | None = None,
    lease: Lease | None = None,
    progress: bool | RunView | None = None,
    again: bool = False,
    current_code: bool = False,
    **settings: Any,
) -> Run:
    """Continue a run that was stopped, interrupted or killed, from its newest state; or train a finished run longer.

    On the same number of workers the result is that of a run that was never stopped, bit for bit. On others the
    samples come in the same order. An estimator is trained again from its first round, with the same result.

    Args:
        run: The run, its folder or its name.
        recipe: The recipe or the model, if it was typed into a notebook and cannot be loaded again.
        on_start, lease, progress: See `clew.train`.
        again: Accept a run that has finished: it was asked to stop just after its last step.
        current_code: Whether to use, and save in the run, today's code instead of the code that the run saved.
        **settings: Settings of `TrainConfig` to change, for example `time_limit_minutes=60` or `workers=4`. With more
            `epochs` than before, a finished run continues too; its schedule is computed for all of them.

    Returns:
        The finished run.

    Raises:
        RunError: The run is still running, has finished, or has no state to continue from.

    Example:
        >>> from clew.training.api import resume
        >>> resume("runs/sum")
        Traceback (most recent call last):
            ...
        clew.errors.RunError: runs/sum is finished after 2 epochs; train it longer with --epochs N
    """
    run = run if isinstance(run, Run) else models.open_run(run, runs=RUNS)
    work, config = _resumable(run, recipe, current_code=current_code, again=again)
    context = LaunchContext.join(run.path.parent)
    recorded = {**to_data(config), **({"workers": 1} if context.store is not None else {})}
    document = with_defaults(Document(settings, source="clew.resume"), {**recorded, "start_from": None})
    chosen = context.with_workers(validate(TrainConfig, document))
    chosen = _estimator_settings(work, chosen) if work.has_estimator else chosen
    if run.state == "finished" and chosen.epochs <= config.epochs and (again or chosen.store is not None):
        return _store(run, chosen, context)  # it may have been killed before it was stored
    check_same_dataset(run, Dataset(chosen.dataset))

    def reopen() -> Run:
        _prepare_to_continue(run, config, chosen, lease)
        if current_code:
            save_code(run, work)
        _announce(run, view, on_start)
        return run

    start = TrainingStart(work, chosen, resume=True, lease=lease)
    with captured_console(), contextlib.closing(_view(progress, context, lease)) as view:
        return _store(run_training(reopen, start, context, view.close), chosen, context)


def _resumable(run: Run, recipe: Any, *, current_code: bool, again: bool) -> tuple[Recipe, TrainConfig]:
    """Return the recipe and the settings of a run.

    Raises:
        RunError: The run is finished and trains an estimator, which cannot be trained longer.
    """
    from clew.training.run_recipe import recipe_of_run

    work, config = recipe_of_run(run, recipe, current_code=current_code)
    if work.has_estimator and run.state == "finished" and not again:
        hint = f"for another number of rounds: clew train {run.path} --set model.arguments=... --output NEW"
        raise RunError(f"{run.path} is finished, and an estimator is not trained longer; {hint}")
    return work, config


def _prepare_to_continue(run: Run, before: TrainConfig, chosen: TrainConfig, lease: Lease | None) -> None:
    # under a lease, a process on another host that seems to run it has lost it
    if run.state == "running" and lease is None:
        raise RunError(f"{run.path} is running; there is nothing to resume")
    if run.state == "finished":
        from clew.training.checkpoint import prepare_to_train_longer

        prepare_to_train_longer(run, before, chosen)
    elif chosen.epochs != before.epochs:
        run.save_settings(epochs=chosen.epochs)


def run_settings(recipe: Recipe, config: TrainConfig) -> Mapping[str, Any]:
    """The settings that are saved with a run, in the form that `clew train --config` reads."""
    return {"recipe": recipe.location, **to_data(recipe.config), "train": to_data(config)}


def _view(progress: bool | RunView | None, context: LaunchContext, lease: Lease | None) -> RunView:
    """Return what shows the training. Other ranks, and runs that a study watches, show nothing by default."""
    if isinstance(progress, RunView):
        return progress
    is_shown = context.place.rank == 0 and not (progress is None and lease is not None)
    return view_for_python(progress if is_shown else False)


def _announce(run: Run, view: RunView, on_start: Callable[[Run], None] | None) -> None:
    view.started(run)
    if on_start is not None:
        on_start(run)


def _as_data(section: Any) -> dict[str, Any]:
    return to_data(section) if isinstance(section, Section) else dict(section)


def _settings(
    recipe: Recipe, dataset: Any, config: Any, output: str | Path | None, settings: Mapping[str, Any]
) -> tuple[str | Path | None, TrainConfig]:
    """Return the folder of the run (None for the next free one) and the checked settings."""
    location = dataset.path if isinstance(dataset, Dataset) else dataset
    defaults = _as_data(config) if config else recipe.defaults.get("train", {})
    explicit = {**settings, **({"dataset": str(location)} if location else {})}
    document = with_defaults(Document(explicit, source="clew.train"), defaults)
    document.data["dataset"] = storage.absolute_location(str(document.data.get("dataset", "dataset")))
    if document.data.get("start_from") is not None:
        document.data["start_from"] = find_weights(document.data["start_from"])
    output, document.data["store"] = _split_output(output, document.data.get("store"))
    return output, validate(TrainConfig, document)


def _split_output(output: str | Path | None, store: Any) -> tuple[str | Path | None, Any]:
    """Return the local folder of the run, and the store to which it is copied when it has finished.

    Raises:
        ConfigError: Both `output` and `store` name a store.
    """
    if output is None or not storage.is_url(str(output)):
        return output if output is None else storage.local_path(str(output)), store
    if store is not None:
        raise ConfigError(f"--output {storage.mask_secrets(str(output))} stores the run; leave out train.store")
    name = storage.base_name(str(output))
    return RUNS / name, {"to": storage.parent_location(str(output)), "what": ["all"], "name": name}


def _store(run: Run, config: TrainConfig, context: LaunchContext) -> Run:
    """Copy the run to the store of the settings. A failure leaves the run intact, and a note says how to try again."""
    if config.store is not None and context.place.rank == 0:
        target = config.store
        try:
            models.store_model(run, target.to, target.what, name=target.name)
        except Exception as error:
            name = f" --name {target.name}" if target.name else ""
            what = "".join(f" --what {part}" for part in target.what)
            command = f"clew model put {run.path} {target.to}{name}{what}"
            reason = storage.mask_secrets(str(error))
            message = f"the run is complete, but was not stored: {reason}; try again with: {command}"
            with run.writer("store") as writer:
                writer.write("note", message=message)
            warnings.warn(message, stacklevel=3)
    return run


def _from_model(
    model: Any, data: Sequence[Any], settings: dict[str, Any], context: LaunchContext, view: RunView
) -> tuple[Recipe, Dataset, dict[str, Any]]:
    """Make a recipe and a dataset from a model and plain data. Also return the settings that are left for training."""
    train_data, val_data = data
    columns = {name: settings.pop(name, None) for name in InputColumns.model_fields}
    loss, arguments = settings.pop("loss", "auto"), settings.pop("arguments", {})
    options = {name: settings.pop(name) for name in _MODEL_SETTINGS if name in settings}
    options = {name: value for name, value in options.items() if value is not None}
    if model is not None and options.get("estimator"):
        raise ConfigError("name a model or an estimator, not both")
    from_module = loading.lightning_data(model, train_data)
    if from_module is not None:
        train_data, own_val, module_options = from_module
        val_data = own_val if val_data is None else val_data
        options |= {name: value for name, value in module_options.items() if name in _MODEL_SETTINGS}
        settings.setdefault("batch_size", module_options.get("batch_size", 128))
    if train_data is None:
        raise ConfigError("give the data to train on: clew.train(model, train, val), or --train FILES")
    recipe = recipe_for(model, train_data, columns=columns, loss=loss, arguments=arguments, **options)

    def make() -> str:
        dataset = dataset_for(recipe, train_data, val_data, root=context.root, progress=view.preparing)
        view.prepared(dataset)
        return str(dataset.path)

    return recipe, Dataset(context.from_rank_zero("dataset", make)), settings


def _estimator_settings(recipe: Recipe, config: TrainConfig) -> TrainConfig:
    from clew.training.estimator_fit import estimator_settings  # which imports torch

    return estimator_settings(recipe, config)


def _default_name(recipe: Recipe) -> str:
    if isinstance(recipe, Columns):
        return run_name(recipe)
    return Path(recipe.location).stem if recipe.location else type(recipe).__name__.lower()
