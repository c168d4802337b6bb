"""`clew.train`: a recipe and a dataset to a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from clew.config import Document, beneath, to_data, validate
from clew.dataset import Dataset
from clew.errors import DataError
from clew.files import write_text
from clew.launch.local import run_local
from clew.ledger import Run
from clew.ledger.environment import allowed_cores, capture
from clew.ledger.folder import next_name
from clew.recipe import Recipe, resolve
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
    place = dataset.path if isinstance(dataset, Dataset) else dataset
    work = resolve(recipe)
    below = to_data(config) if config else work.defaults.get("train", {})
    given = beneath(Document({**settings, **({"dataset": str(place)} if place else {})}, source="clew.train"), below)
    given.data["dataset"] = str(Path(given.data.get("dataset", "dataset")).absolute())
    chosen = validate(TrainConfig, given)
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


def start(run: Run, recipe: Recipe, config: TrainConfig) -> None:
    """Do the training that a fresh run folder describes."""
    threads = config.threads or max(1, allowed_cores() // config.workers)
    arguments = (run, recipe, config, threads)
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
    except Exception as error:
        # rank 0 may have been stopped, or know only that it lost another: its stream must end with the cause
        with run.writer("rank-0") as writer:
            writer.write("end", status="failed", message=str(error))
        raise


def _check(data: Dataset) -> None:
    for split in ("train", "val"):
        if not data.splits.get(split):
            raise DataError(f"{data.path}: the split '{split}' is empty; give it a share with prepare.split")


def _enter(run: Run, recipe: Recipe, config: TrainConfig, threads: int, rank: int, ranks: int) -> None:
    import torch

    from clew.train.loop import run_rank

    torch.set_num_threads(threads)
    run_rank(run, recipe, config, rank, ranks)
