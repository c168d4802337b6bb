"""`clew.train`: a recipe and a dataset to a run."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from clew import storage
from clew.core.config import Document, beneath, to_data, validate
from clew.core.files import write_text
from clew.data.dataset import Dataset
from clew.errors import ConfigError, DataError, LeaseError, RecipeError, RunError, StoppedError
from clew.jobs.lease import Lease
from clew.jobs.local_workers import run_local
from clew.jobs.rank_info import RankInfo, open_store_at
from clew.jobs.worker_process import check_not_in_worker
from clew.models.columns import Columns
from clew.recipe import TYPED_IN, Recipe, resolve
from clew.runs import Run
from clew.runs.environment import allowed_cores, capture
from clew.runs.folder import next_run_path
from clew.runs.push_process import pushed
from clew.storage import models
from clew.training.config import TrainConfig
from clew.training.launch_context import LaunchContext, first_failure
from clew.training.model_recipe import dataset_for, is_model, recipe_for, run_name

RUNS = Path("runs")


def train(
    recipe: Any,
    dataset: Any = None,
    config: Any = None,
    *,
    output: str | Path | None = None,
    begun: Callable[[Run], None] | None = None,
    lease: Lease | None = None,
    **settings: Any,
) -> Run:
    """Train, on as many processes as `workers` says or a launcher has started, and return the run.

    With a recipe (its name, file, class or itself): `clew.train("tracking", "dataset", epochs=5)`. `dataset` is a
    dataset or its folder, `config` a `TrainConfig`; `settings` are those of `TrainConfig`, laid over `config` or,
    without one, over what the recipe would rather have.

    Without one: `clew.train(model, train, val, features="X", labels="Y", loss="cross_entropy", workers=2)`. `model` is
    an `nn.Module` or a Keras model, a function that makes one, `"net.py:build"`, a Keras file (.keras, .h5, .json) or
    an exported program (.pt2); `train` and `val` are files, a table, arrays by name, a data frame or (X, y); without
    `val` a fifth of `train` is held out. `weight` and `select` are expressions of columns, `scale` is "standard" or
    "min_max", `arguments` those of the function that builds the model, `outputs` "logits" or "probabilities" where its
    last layer does not tell.

    With `replicas=100` as many models are trained, which differ in their seed alone: the run is an ensemble, its
    members are `run.replicas()`, and `clew.predict` gives mean and spread.

    `output` is the run's folder (default: the next free one under `runs/`), or a place in a store (`s3://...`), to
    which all of the run goes when it has finished. `begun` is called with the run once its folder is there, before any
    work. Where the work is on `lease`, the run gives it signs of life and stops when it says so.

    Raises:
        UserError: something in the recipe, the data or the settings is wrong.
        WorkerError: a process died; the run's folder says what it had done.
    """
    check_not_in_worker("clew.train")
    team = LaunchContext.gathered(RUNS if output is None or storage.is_url(str(output)) else Path(output).parent)
    if is_model(recipe):
        recipe, dataset, settings = _without_recipe(recipe, dataset, config, settings, team)
        config = None
    place = dataset.path if isinstance(dataset, Dataset) else dataset
    work = resolve(recipe)
    below = to_data(config) if config else work.defaults.get("train", {})
    given = beneath(Document({**settings, **({"dataset": str(place)} if place else {})}, source="clew.train"), below)
    named = str(given.data.get("dataset", "dataset"))
    given.data["dataset"] = named if storage.is_url(named) else str(storage.local_path(named).absolute())
    output, given.data["store"] = _output(output, given.data.get("store"))
    chosen = team.sized(validate(TrainConfig, given))
    if chosen.workers > 1 and not work.location and type(work).__module__ == "__main__":
        raise RecipeError(f"recipe {type(work).__name__} was typed in; {TYPED_IN}")
    data = Dataset(chosen.dataset)
    _check(data)

    def make() -> Run:
        folder = Path(output) if output else next_run_path(RUNS, _name(work))
        run = Run.create(folder, config=run_settings(work, chosen), environment=capture())
        write_text(run.dataset_file, (data.path / "manifest.json").read_text())
        if begun is not None:
            begun(run)
        return run

    return _stored(_begin(make, work, chosen, team, resume=False, lease=lease), chosen, team)


def _output(output: str | Path | None, store: Any) -> tuple[str | Path | None, Any]:
    """Where the run's folder is while it trains, and what is stored: a run that goes to a store is made here first.

    Raises:
        ConfigError: two places to store it are given.
    """
    if output is None or not storage.is_url(str(output)):
        return output, store
    if store is not None:
        raise ConfigError(f"--output {storage.mask_secrets(str(output))} stores the run; leave out train.store")
    name = storage.base_name(str(output))
    return RUNS / name, {"to": storage.parent_location(str(output)), "what": ["all"], "name": name}


def _stored(run: Run, config: TrainConfig, team: LaunchContext) -> Run:
    """Keep what the settings ask for. A store that fails costs no run: it is told how to try again."""
    if config.store is not None and team.here.rank == 0:
        wish = config.store
        try:
            models.store_model(run, wish.to, wish.what, name=wish.name)
        except Exception as error:
            name = f" --name {wish.name}" if wish.name else ""
            what = "".join(f" --what {part}" for part in wish.what)
            again = f"clew model put {run.path} {wish.to}{name}{what}"
            told = f"the run is whole, but was not stored: {storage.mask_secrets(str(error))}; try again with: {again}"
            with run.writer("store") as writer:
                writer.write("note", message=told)
            warnings.warn(told, stacklevel=3)
    return run


def _without_recipe(
    model: Any, train: Any, val: Any, settings: dict[str, Any], team: LaunchContext
) -> tuple[Recipe, Dataset, dict[str, Any]]:
    """A model and data as a recipe and a dataset; and the settings that are left for training."""
    columns = {name: settings.pop(name, None) for name in ("features", "labels", "weight", "select", "scale")}
    loss, arguments = settings.pop("loss", "auto"), settings.pop("arguments", {})
    more = {name: settings.pop(name) for name in ("outputs", "penalties") if name in settings}
    prepared = settings.pop("prepared", None)
    if train is None:
        raise ConfigError("give the data to train on: clew.train(model, train, val), or --train FILES")
    recipe = recipe_for(model, train, columns=columns, loss=loss, arguments=arguments, **more)

    def make() -> str:
        found = dataset_for(recipe, train, val, root=team.root, progress=prepared)
        if prepared is not None:
            prepared.tell(found)
        return str(found.path)

    return recipe, Dataset(team.share("dataset", make)), settings


def _name(recipe: Recipe) -> str:
    if isinstance(recipe, Columns):
        return run_name(recipe)
    return Path(recipe.location).stem if recipe.location else type(recipe).__name__.lower()


def resume(
    run: Run | str | Path,
    *,
    recipe: Any = None,
    begun: Callable[[Run], None] | None = None,
    lease: Lease | None = None,
    again: bool = False,
    **settings: Any,
) -> Run:
    """Go on with a run that was stopped, interrupted or killed, from its newest state.

    On the same number of workers the result is that of a run never stopped, bit for bit; on another number
    (`workers=4`) the samples come in the same order. `settings` may also give a new `time_limit_minutes`. With `again`
    one that has finished is no error: it was told to stop when it had just done so, and may have to be stored still.

    Raises:
        RunError: it is running or finished, or has no state to go on from.
    """
    from clew.training.run_recipe import recipe_of_run

    run = run if isinstance(run, Run) else models.open_run(run, runs=RUNS)
    work, config = recipe_of_run(run, recipe)
    team = LaunchContext.gathered(run.path.parent)
    before = {**to_data(config), **({"workers": 1} if team.store is not None else {})}
    chosen = team.sized(validate(TrainConfig, beneath(Document(settings, source="clew.resume"), before)))
    if again and run.state == "finished":
        return _stored(run, chosen, team)
    _check(Dataset(chosen.dataset))

    def ready() -> Run:
        # on lease, whoever seems to run it on another host has lost it
        if run.state in (("finished",) if lease is not None else ("running", "finished")):
            raise RunError(f"{run.path} is {run.state}; there is nothing to resume")
        if begun is not None:
            begun(run)
        return run

    return _stored(_begin(ready, work, chosen, team, resume=True, lease=lease), chosen, team)


def _begin(
    make: Callable[[], Run],
    recipe: Recipe,
    config: TrainConfig,
    team: LaunchContext,
    *,
    resume: bool,
    lease: Lease | None,
) -> Run:
    """Train in this process as one of those a launcher started, or else start what is needed."""
    if config.replicas is not None and team.store is not None:
        raise ConfigError(f"replicas are trained on one machine; call clew train without {team.here.launcher}")
    if lease is not None and team.here.rank == 0:
        lease.beat(now=True)
        if lease.lost:
            raise LeaseError(f"{lease.path}: this work was handed to another before it began")
    run = replace(Run.open(team.share("run", lambda: str(make().path))), recipe=recipe)
    with pushed(run=run) if team.here.rank == 0 and lease is None else contextlib.nullcontext():
        return _go(run, recipe, config, team, resume=resume, lease=lease)


def _go(
    run: Run, recipe: Recipe, config: TrainConfig, team: LaunchContext, *, resume: bool, lease: Lease | None
) -> Run:
    if config.replicas is not None:
        from clew.training.packs.replicas import train_replicas

        train_replicas(run, recipe, config, lease)
        return run
    if team.store is None:
        _start(run, recipe, config, resume=resume, lease=lease)
        return run
    try:
        _work(run, recipe, config, team.here, team.store, resume=resume, lease=lease)
    except StoppedError:
        raise
    except Exception as error:
        first = first_failure(error, team.here, team.store)
        if team.here.rank == 0 and first is not error:
            _end(run, first)
        raise first from error
    return run


def _start(run: Run, recipe: Recipe, config: TrainConfig, *, resume: bool, lease: Lease | None) -> None:
    """Do, or go on with, the training that a run folder describes, in processes of this machine."""
    run.meeting_file.unlink(missing_ok=True)
    arguments = (run, recipe, config, resume, lease)
    if config.processes == 1:
        _enter(*arguments, 0, 1)
    else:
        _in_processes(run, arguments, config.processes)
    run.meeting_file.unlink(missing_ok=True)


def run_settings(recipe: Recipe, config: TrainConfig) -> Mapping[str, Any]:
    """The settings of a run, in the form `clew train --config` takes back."""
    return {"recipe": recipe.location, **to_data(recipe.config), "train": to_data(config)}


def _in_processes(run: Run, arguments: tuple[Any, ...], workers: int) -> None:
    try:
        # torch._dynamo: building an optimiser imports it, two seconds that the workers need not spend each
        heavy = ["torch._dynamo", *(["keras"] if "keras" in sys.modules else [])]
        run_local(_enter, arguments, workers, preload=[*heavy, "torch.distributed", "clew.training.loop"])
    except StoppedError:
        raise
    except Exception as error:
        _end(run, error)
        raise


def _end(run: Run, error: Exception) -> None:
    """Rank 0 may have been stopped, or know only that it lost another: its stream must end with the cause."""
    with run.writer("rank-0") as writer:
        writer.write("end", status="failed", message=str(error), error=type(error).__name__)


def _check(data: Dataset) -> None:
    for split in ("train", "val"):
        if not data.splits.get(split):
            raise DataError(f"{data.path}: the split '{split}' is empty; give it a share with prepare.split")


def _enter(
    run: Run, recipe: Recipe, config: TrainConfig, resume: bool, lease: Lease | None, rank: int, ranks: int
) -> None:
    """A worker of this machine."""
    store = open_store_at(run.meeting_file, rank, ranks) if ranks > 1 else None
    _work(run, recipe, config, RankInfo(rank, ranks, rank, ranks), store, resume=resume, lease=lease)


def _work(
    run: Run,
    recipe: Recipe,
    config: TrainConfig,
    place: RankInfo,
    store: Any,
    *,
    resume: bool,
    lease: Lease | None,
) -> None:
    import torch

    from clew.training.strategies import entry_point

    torch.set_num_threads(config.threads or max(1, allowed_cores() // place.local_ranks))
    with _reproducible() if config.deterministic else contextlib.nullcontext():
        entry_point(config)(run, recipe, config, place, store=store, resume=resume, lease=lease)


@contextlib.contextmanager
def _reproducible() -> Iterator[None]:
    """Only algorithms that give the same bits again; what has none is an error."""
    import torch

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS asks for it
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
