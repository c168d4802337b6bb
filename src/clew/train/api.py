"""`clew.train`: a recipe and a dataset to a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from clew.config import Document, beneath, to_data, validate
from clew.dataset import Dataset
from clew.errors import ClewError, ConfigError, DataError, RecipeError, RunError, StoppedError, WorkerError
from clew.files import write_text
from clew.launch.local import run_local
from clew.launch.place import Place, meet
from clew.launch.place import find as launched
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
    here = launched()
    chosen = _with_workers(validate(TrainConfig, given), here)
    if chosen.workers > 1 and not work.location and type(work).__module__ == "__main__":
        raise RecipeError(f"recipe {type(work).__name__} was typed in; {TYPED_IN}")
    data = Dataset(chosen.dataset)
    _check(data)

    def make() -> Run:
        name = Path(work.location).stem if work.location else type(work).__name__.lower()
        folder = Path(output) if output else next_name(RUNS, name)
        run = Run.create(folder, config=document(work, chosen), environment=capture())
        write_text(run.dataset_file, (data.path / "manifest.json").read_text())
        if begun is not None:
            begun(run)
        return run

    return _begin(make, work, chosen, here, Path(output).parent if output else RUNS, resume=False)


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
    work, config = recipe_of(run, None if recipe is None else resolve(recipe))
    here = launched()
    before = {**to_data(config), **({"workers": 1} if here.ranks > 1 else {})}
    chosen = validate(TrainConfig, beneath(Document(settings, source="clew.resume"), before))
    chosen = _with_workers(chosen, here)
    _check(Dataset(chosen.dataset))

    def ready() -> Run:
        if run.state in ("running", "finished"):
            raise RunError(f"{run.path} is {run.state}; there is nothing to resume")
        if begun is not None:
            begun(run)
        return run

    return _begin(ready, work, chosen, here, run.path.parent, resume=True)


def _with_workers(config: TrainConfig, here: Place) -> TrainConfig:
    """The settings with as many workers as a launcher has started, if one has.

    Raises:
        ConfigError: they ask for another number.
    """
    if here.ranks == 1:
        return config
    if config.workers not in (1, here.ranks):
        raise ConfigError(f"train.workers is {config.workers}, but {here.launcher} started {here.ranks} processes")
    return config.model_copy(update={"workers": here.ranks})


def _begin(
    make: Callable[[], Run], recipe: Recipe, config: TrainConfig, here: Place, root: Path, *, resume: bool
) -> Run:
    """Train in this process as one of those a launcher started, or else start what is needed."""
    if here.ranks == 1:
        run = make()
        _start(run, recipe, config, resume=resume)
        return run
    root.mkdir(parents=True, exist_ok=True)
    store = meet(here, root)
    run = _shared(make, here, store)
    try:
        _work(run, recipe, config, here, store, resume=resume)
    except StoppedError:
        raise
    except Exception as error:
        cause = _cause(error, here, store)
        if here.rank == 0 and cause is not error:
            _end(run, cause)
        raise cause from error
    return run


def _shared(make: Callable[[], Run], here: Place, store: Any) -> Run:
    """The run that rank 0 makes, on every rank."""
    if here.rank:
        word = store.get("run").decode()
        if word.startswith("!"):
            raise WorkerError(f"rank {here.rank} gives up, because rank 0 did: {word[1:]}")
        return Run.open(word)
    try:
        run = make()
    except ClewError as error:
        store.set("run", f"!{error}")
        raise
    store.set("run", str(run.path))
    return run


def _cause(error: Exception, here: Place, store: Any) -> Exception:
    """The error of the rank that failed first, which the others may know only as a lost connection."""
    told = f"{type(error).__name__}: {error}" if not isinstance(error, ClewError) else str(error)
    try:
        first = store.compare_set("failure", "", f"{here.rank} {told}").decode()
    except RuntimeError:  # rank 0, who kept the store, is gone
        return error
    rank, _, words = first.partition(" ")
    return error if int(rank) == here.rank else WorkerError(f"rank {rank}: {words}")


def _start(run: Run, recipe: Recipe, config: TrainConfig, *, resume: bool) -> None:
    """Do, or go on with, the training that a run folder describes, in processes of this machine."""
    run.meeting_file.unlink(missing_ok=True)
    arguments = (run, recipe, config, resume)
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
        _end(run, error)
        raise


def _end(run: Run, error: Exception) -> None:
    """Rank 0 may have been stopped, or know only that it lost another: its stream must end with the cause."""
    with run.writer("rank-0") as writer:
        writer.write("end", status="failed", message=str(error))


def _check(data: Dataset) -> None:
    for split in ("train", "val"):
        if not data.splits.get(split):
            raise DataError(f"{data.path}: the split '{split}' is empty; give it a share with prepare.split")


def _enter(run: Run, recipe: Recipe, config: TrainConfig, resume: bool, rank: int, ranks: int) -> None:
    """A worker of this machine."""
    from torch._C._distributed_c10d import FileStore

    store = FileStore(str(run.meeting_file), ranks) if ranks > 1 else None
    _work(run, recipe, config, Place(rank, ranks, rank, ranks), store, resume=resume)


def _work(run: Run, recipe: Recipe, config: TrainConfig, place: Place, store: Any, *, resume: bool) -> None:
    import torch

    from clew.train.loop import run_rank

    torch.set_num_threads(config.threads or max(1, allowed_cores() // place.local_ranks))
    run_rank(run, recipe, config, place, store=store, resume=resume)
