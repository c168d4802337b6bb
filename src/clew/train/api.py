"""`clew.train`: a recipe and a dataset to a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from clew.config import Document, beneath, to_data, validate
from clew.dataset import Dataset
from clew.errors import DataError, RecipeError, RunError, StoppedError
from clew.files import write_text
from clew.launch.local import run_local
from clew.launch.worker import check_not_inside
from clew.ledger import Run
from clew.ledger.environment import allowed_cores, capture
from clew.ledger.folder import next_name
from clew.recipe import TYPED_IN, Recipe, resolve
from clew.train.config import TrainConfig

RUNS = Path("runs")


def train(
    recipe: str | Recipe | type[Recipe],
    dataset: str | Path | Dataset | None = None,
    config: TrainConfig | None = None,
    *,
    output: str | Path | None = None,
    begun: Callable[[Run], None] | None = None,
    **settings: Any,
) -> Run:
    """Train, on as many processes as `workers` says, and return the run.

    `settings` are those of `TrainConfig`, laid over `config` or, without one, over what the recipe would rather have:
    `clew.train("tracking", "dataset", epochs=5)`.
    `output` is the run's folder (default: the next free one under `runs/`). `begun` is called with the run once
    its folder is there, before any work.

    Raises:
        UserError: something in the recipe, the data or the settings is wrong.
        WorkerError: a process died; the run's folder says what it had done.
    """
    check_not_inside("clew.train")
    place = dataset.path if isinstance(dataset, Dataset) else dataset
    work = resolve(recipe)
    below = to_data(config) if config else work.defaults.get("train", {})
    given = beneath(Document({**settings, **({"dataset": str(place)} if place else {})}, source="clew.train"), below)
    given.data["dataset"] = str(Path(given.data.get("dataset", "dataset")).absolute())
    chosen = validate(TrainConfig, given)
    if chosen.workers > 1 and not work.location and type(work).__module__ == "__main__":
        raise RecipeError(f"recipe {type(work).__name__} was typed in; {TYPED_IN}")
    data = Dataset(chosen.dataset)
    _check(data)
    name = Path(work.location).stem if work.location else type(work).__name__.lower()
    run = Run.create(
        Path(output) if output else next_name(RUNS, name),
        config=document(work, chosen),
        environment=capture(),
    )
    write_text(run.dataset_file, (data.path / "manifest.json").read_text())
    if begun is not None:
        begun(run)
    start(run, work, chosen)
    return run


def resume(
    run: Run | str | Path,
    *,
    recipe: str | Recipe | type[Recipe] | None = None,
    begun: Callable[[Run], None] | None = None,
    **settings: Any,
) -> Run:
    """Go on with a run that was stopped, interrupted or killed, from its newest state.

    On the same number of workers the result is that of a run never stopped, bit for bit; on another number
    (`workers=4`) the samples come in the same order. `settings` may also give a new `time_limit_minutes`.

    Raises:
        RunError: it is running or finished, or has no state to go on from.
    """
    from clew.train.evaluate import recipe_of

    run = run if isinstance(run, Run) else Run.open(run)
    if run.state in ("running", "finished"):
        raise RunError(f"{run.path} is {run.state}; there is nothing to resume")
    work, config = recipe_of(run, None if recipe is None else resolve(recipe))
    chosen = validate(TrainConfig, beneath(Document(settings, source="clew.resume"), to_data(config)))
    _check(Dataset(chosen.dataset))
    if begun is not None:
        begun(run)
    start(run, work, chosen, resume=True)
    return run


def start(run: Run, recipe: Recipe, config: TrainConfig, *, resume: bool = False) -> None:
    """Do, or go on with, the training that a run folder describes."""
    run.meeting_file.unlink(missing_ok=True)
    threads = config.threads or max(1, allowed_cores() // config.workers)
    arguments = (run, recipe, config, threads, resume)
    if config.workers == 1:
        _enter(*arguments, 0, 1)
    else:
        _in_processes(run, arguments, config.workers)
    run.meeting_file.unlink(missing_ok=True)


def document(recipe: Recipe, config: TrainConfig) -> Mapping[str, Any]:
    """The settings of a run, in the form `clew train --config` takes back."""
    return {"recipe": recipe.location, **to_data(recipe.config), "train": to_data(config)}


def _in_processes(run: Run, arguments: tuple[Any, ...], workers: int) -> None:
    try:
        # torch._dynamo: building an optimiser imports it, two seconds that the workers need not spend each
        run_local(_enter, arguments, workers, preload=["torch._dynamo", "torch.distributed", "clew.train.loop"])
    except StoppedError:
        raise
    except Exception as error:
        # rank 0 may have been stopped, or know only that it lost another: its stream must end with the cause
        with run.writer("rank-0") as writer:
            writer.write("end", status="failed", message=str(error))
        raise


def _check(data: Dataset) -> None:
    for split in ("train", "val"):
        if not data.splits.get(split):
            raise DataError(f"{data.path}: the split '{split}' is empty; give it a share with prepare.split")


def _enter(run: Run, recipe: Recipe, config: TrainConfig, threads: int, resume: bool, rank: int, ranks: int) -> None:
    import torch

    from clew.train.loop import run_rank

    torch.set_num_threads(threads)
    run_rank(run, recipe, config, rank, ranks, resume=resume)
