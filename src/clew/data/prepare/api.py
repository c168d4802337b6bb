"""`clew.prepare`: from raw events to a dataset."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from dataclasses import replace as replace_in
from pathlib import Path
from typing import Any

from clew import storage
from clew.data.dataset import Dataset
from clew.data.dataset.manifest import MANIFEST
from clew.data.prepare.assembly import DatasetAssembly
from clew.data.prepare.chain import PREPARE
from clew.data.prepare.chain_run import InputPiece, PieceContext
from clew.data.prepare.config import PrepareConfig
from clew.data.prepare.executors import OpenExecutor, TaskQueue, executor_factory, is_mpi, mpi_rank, start_early
from clew.data.prepare.explanation import Explanation, explain_plan, stages_to_remember
from clew.data.prepare.inputs import InputSource
from clew.data.prepare.plan import PreparePlan, prepare_settings
from clew.data.prepare.reuse import key_at
from clew.data.prepare.stage_costs import mean_costs
from clew.data.prepare.stages import no_events_error
from clew.data.prepare.worker import PreparedPiece, count_items, measure, prepare_piece
from clew.data.readers.items import ItemCounts
from clew.data.transforms import FittedTransform, Transform
from clew.errors import DataError, RecipeError, WorkerError
from clew.jobs.worker_process import check_not_in_worker
from clew.recipe import TYPED_IN, Recipe


@dataclass(frozen=True)
class PrepareProgress:
    """The progress of a preparation: pieces, events and bytes so far."""

    stage: str
    done: int
    total: int
    events: int
    bytes: int


def prepare(
    recipe: str | Recipe | type[Recipe],
    config: PrepareConfig | None = None,
    *,
    replace: bool = False,
    verify: bool = False,
    executor: Executor | str | None = None,
    progress: Callable[[PrepareProgress], None] | None = None,
    **settings: Any,
) -> Dataset:
    """Make a dataset from raw events. If the dataset already exists and nothing it depends on has changed, return it.

    Args:
        recipe: Name of a recipe, path of its file, class, or object.
        config: The settings. By default those of the recipe.
        replace: Whether another dataset at `output` may be replaced.
        verify: Whether all inputs and shards are read again. Otherwise the size and the time of a file are trusted.
        executor: An executor of your own, or the name of one (`processes`, `threads`, `mpi`, `dask`).
        progress: Called after each piece.
        **settings: Settings of `PrepareConfig`, such as `input`, `output`, `workers` or `split`. They replace those of
            `config`.

    Returns:
        The dataset, opened for reading.

    Raises:
        DataError: an input cannot be used, or `output` contains another dataset and `replace` is false.
        WorkerError: one piece of data repeatedly ends the process that works on it. Under MPI: rank 0 failed.

    Example:
        >>> import pathlib, tempfile; from clew import Table
        >>> class Plain(Recipe):
        ...     def prepare(self, events):
        ...         return events
        ...     def model(self):
        ...         raise NotImplementedError
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> Table({"pt": [20.0, 30.0, 40.0]}).save(folder / "jets.h5")
        >>> options = {"output": str(folder / "dataset"), "split": {"train": 1.0}, "workers": 1}
        >>> prepare(Plain, input=[str(folder / "jets.h5")], **options).splits
        {'train': 3}
    """
    check_not_in_worker("clew.prepare")
    if isinstance(executor, str):
        settings["executor"] = executor
    recipe, config = prepare_settings(recipe, config, settings)
    if storage.is_url(config.output):
        plan = PreparePlan(recipe, config, {}, verify=verify)
        return _to_store(plan, replace=replace, verify=verify, executor=executor, progress=progress)
    given_executor = executor if isinstance(executor, Executor) else None
    _prepare_on_disk(recipe, config, given_executor, progress or (lambda _: None), replace=replace, verify=verify)
    return Dataset(storage.local_path(config.output))


def _prepare_on_disk(
    recipe: Recipe,
    config: PrepareConfig,
    executor: Executor | None,
    progress: Callable[[PrepareProgress], None],
    *,
    replace: bool,
    verify: bool,
) -> None:
    """Make the dataset in a folder, unless it is there already."""
    output, queue = storage.local_path(config.output), _task_queue(recipe, config, executor)
    with contextlib.ExitStack() as stack:
        if is_mpi(config.executor):  # before the plan, which only rank 0 makes: the others wait for its tasks
            stack.enter_context(queue)
            if queue.serves:
                _check_rank_0(output, queue.exit_code)
                return
        elif executor is None and not output.exists():
            start_early(config.executor, _workers(recipe, config), _modules(recipe))
        plan = PreparePlan(recipe, config, {}, verify=verify)
        if not _is_up_to_date(output, plan.key, replace=replace, verify=verify):
            if not is_mpi(config.executor):
                stack.enter_context(queue)
            _prepare_dataset(plan, queue, progress)


def _task_queue(recipe: Recipe, config: PrepareConfig, executor: Executor | None) -> TaskQueue:
    """Return the queue for the tasks of a preparation, which is not open yet."""
    open_executor, width = executor_factory(config.executor, _workers(recipe, config), _modules(recipe))
    if executor is None:
        return TaskQueue(open_executor, width)
    opened = OpenExecutor(executor, isinstance(executor, (ThreadPoolExecutor, ProcessPoolExecutor)))
    return TaskQueue(lambda: nullcontext(opened), width)


def _modules(recipe: Recipe) -> list[str]:
    """Return the modules that worker processes can import early: that of the recipe, unless it is a file or typed."""
    module = type(recipe).__module__
    return [module] if "." in module and not module.startswith("clew_") else []


def _check_rank_0(output: Path, exit_code: int) -> None:
    """Check, on a rank that executed tasks of rank 0, that rank 0 succeeded.

    Raises:
        WorkerError: it failed.
    """
    if exit_code:
        error = WorkerError(f"{output}: rank 0 failed to make the dataset; see its message")
        error.exit_code = exit_code  # mpiexec may combine the codes of all ranks
        raise error


def _to_store(plan: PreparePlan, *, replace: bool, **options: Any) -> Dataset:
    """Make a dataset in the cache folder and copy it to a store. A dataset that is already there is not made again.

    Raises:
        DataError: another dataset is there and `replace` is false, or the store cannot be written.
    """
    output = plan.config.output
    existing_key = key_at(output)
    if existing_key == plan.key and not options["verify"]:
        return Dataset(output)
    if existing_key and existing_key != plan.key and not replace:
        raise DataError(
            f"{storage.mask_secrets(output)} holds another dataset; choose another --output, or use --replace"
        )
    local_output = plan.cache.folder / "outputs" / plan.key
    try:
        dataset = prepare(
            plan.recipe, plan.config.model_copy(update={"output": str(local_output)}), replace=True, **options
        )
        if mpi_rank():  # under mpiexec one sends it for all
            return dataset
        storage.copy(dataset.path, output, replace=replace)
    finally:
        if not mpi_rank():
            shutil.rmtree(local_output, ignore_errors=True)
    return Dataset(output)


def fill_cache(recipe: str | Recipe | type[Recipe], config: PrepareConfig, part: int, parts: int) -> None:
    """Prepare all pieces for the cache, without writing a dataset.

    Several processes can do this at once if they share the cache. A piece that one of them has finished, or is working
    on, is not done by the others. The pieces of a process that ends early are done by the others.

    Args:
        recipe: Name of a recipe, path of its file, class, or object.
        config: The settings.
        part: Number of this process. It begins with the pieces of this part.
        parts: Number of processes.
    """
    check_not_in_worker("clew.prepare")
    plan = PreparePlan(recipe, config, {})
    with _task_queue(plan.recipe, plan.config, None) as queue:
        if not queue.serves:
            units = plan.units()
            _prepare_pieces(plan, queue, units, lambda _: None, first=len(units) * part // parts)


def dataset_key(recipe: str | Recipe | type[Recipe], config: PrepareConfig | None = None, **settings: Any) -> str:
    """Return the key of the dataset that `prepare` would make. Only inputs whose hash is not known are read."""
    return PreparePlan(recipe, config, settings).key


def _workers(recipe: Recipe, config: PrepareConfig) -> int | None:
    """Return the number of workers. A recipe that other processes cannot load is prepared in this process.

    Raises:
        RecipeError: other processes cannot load the recipe, and the settings ask for several.
    """
    workers = config.workers
    if recipe.location or type(recipe).__module__ != "__main__" or config.executor == "threads":
        return workers
    if workers is not None and workers > 1:
        raise RecipeError(f"recipe {type(recipe).__name__} was typed in; {TYPED_IN}")
    return 1


def _is_up_to_date(output: Path, key: str, *, replace: bool, verify: bool) -> bool:
    """Return whether the dataset already exists. If it has the same key but missing or incomplete shards, it is made
    again.

    Raises:
        DataError: the output contains something else.
    """
    if not output.exists():
        return False
    if not (output / MANIFEST).exists():
        raise DataError(f"{output} exists and is not a dataset; choose another --output")
    try:
        dataset = Dataset(output)
        if dataset.manifest.key == key:
            if not verify:
                return dataset.complete
            dataset.verify()
            return True
    except DataError as error:  # a damaged manifest or shard
        if replace:
            return False
        raise DataError(f"{error}; --replace makes it again") from error
    if not replace:
        raise DataError(f"{output} holds another dataset; choose another --output, or use --replace")
    return False


def explain(recipe: str | Recipe | type[Recipe], config: PrepareConfig | None = None, **settings: Any) -> Explanation:
    """Report which stages `prepare` would find in the cache, which it would compute, and why. Only inputs whose hash
    is not known are read.

    Args:
        recipe: Name of a recipe, path of its file, class, or object.
        config: The settings. By default those of the recipe.
        **settings: Settings of `PrepareConfig`. They replace those of `config`.
    """
    plan = PreparePlan(recipe, config, settings)
    output = plan.config.output
    state = "missing"
    if storage.is_url(output):
        existing_key = key_at(output)
        state = "missing" if not existing_key else "up to date" if existing_key == plan.key else "another dataset"
    elif (storage.local_path(output) / MANIFEST).exists():
        state = "up to date" if Dataset(storage.local_path(output)).manifest.key == plan.key else "another dataset"
    units = plan.units()
    plan.decide_items(units)
    return explain_plan(plan, units, state)


def _prepare_pieces(
    plan: PreparePlan,
    queue: TaskQueue,
    units: Sequence[InputPiece],
    progress: Callable[[PrepareProgress], None],
    *,
    first: int = 0,
) -> tuple[list[Transform], list[list[PreparedPiece]]]:
    """Process all pieces through all stages, beginning with piece `first`.

    Returns:
        The fitted transforms, and the results of the pieces in the order of `units`: sums must not depend on `first`.
    """
    ordered = [*units[first:], *units[:first]]
    plan.decide_items(units, lambda some: _count_items(plan, queue, some, progress))

    def context(transforms: Sequence[Transform]) -> PieceContext:
        chain, split_by = plan.chain(transforms), plan.config.split_by or "event"
        return PieceContext(plan.recipe, chain, plan.cache, split_by, plan.items)

    def measured(transform: FittedTransform, before: Sequence[Transform]) -> list[Any]:
        watch, job = _ProgressCounter("fit", units, progress), context(before)
        job = replace_in(job, chain=job.chain.events, is_fit=True)
        parts = queue.run(measure, (job, transform), ordered, label=_piece_name, on_result=watch)
        measures = [measure for piece in _in_order(parts, first) for measure in piece]
        if not measures:
            raise no_events_error(before)
        return measures

    transforms = plan.fitted(measured)
    job = context(transforms)
    counter = _ProgressCounter("prepare", units, progress)
    pieces = queue.run(prepare_piece, (job,), ordered, label=_piece_name, on_result=counter)
    results = _in_order(pieces, first)
    _check_events_left(units, results, transforms)
    return transforms, results


def _count_items(
    plan: PreparePlan, queue: TaskQueue, units: Sequence[InputPiece], progress: Callable[[PrepareProgress], None]
) -> list[ItemCounts]:
    watch = _ProgressCounter("items", units, progress)
    return queue.run(count_items, (plan.recipe,), units, label=_piece_name, on_result=watch)


def _prepare_dataset(plan: PreparePlan, queue: TaskQueue, progress: Callable[[PrepareProgress], None]) -> None:
    config, units = plan.config, plan.units()
    transforms, results = _prepare_pieces(plan, queue, units, progress)
    with DatasetAssembly(plan.recipe, config, plan.cache) as assembly:
        assembly.write(plan.sources, _by_source(plan.sources, units, results), queue)
        assembly.publish(plan.key, plan.identity, transforms, plan.items)
    plan.remember(stages_to_remember(plan, mean_costs(piece.costs for pieces in results for piece in pieces)))
    if config.keep_rule(PREPARE) == "never":
        for piece in (piece for pieces in results for piece in pieces):
            plan.cache.path(PREPARE, piece.key).unlink(missing_ok=True)


def _in_order(results: list[list[Any]], first: int) -> list[list[Any]]:
    return [*results[len(results) - first :], *results[: len(results) - first]]


def _piece_name(unit: InputPiece) -> str:
    return unit.where


@dataclass
class _ProgressCounter:
    """Counts finished pieces and reports the progress."""

    stage: str
    units: Sequence[InputPiece]
    tell: Callable[[PrepareProgress], None]
    done: int = 0
    events: int = 0
    read: int = 0

    def __call__(self, unit: InputPiece, result: Any) -> None:
        self.done += 1
        parts = result if isinstance(result, list) else ()
        self.events += sum(part.events for part in parts if isinstance(part, PreparedPiece))
        self.read += unit.bytes
        self.tell(PrepareProgress(self.stage, self.done, len(self.units), self.events, self.read))


def _by_source(
    sources: Sequence[InputSource], units: Sequence[InputPiece], results: list[list[PreparedPiece]]
) -> list[list[PreparedPiece]]:
    position = {source: number for number, source in enumerate(sources)}
    grouped: list[list[PreparedPiece]] = [[] for _ in sources]
    for unit, parts in zip(units, results, strict=True):
        grouped[position[unit.source]] += parts
    return grouped


def _check_events_left(
    units: Sequence[InputPiece], results: list[list[PreparedPiece]], transforms: Sequence[Transform]
) -> None:
    """Check that every file has events, and that some events of all files pass the transforms."""
    counts: dict[str, int] = {}
    for unit, parts in zip(units, results, strict=True):
        location = unit.source.location
        counts[location] = counts.get(location, 0) + sum(part.read for part in parts)
    for location, count in counts.items():
        if not count:
            raise DataError(f"{location}: no events in it")
    if not any(part.events for parts in results for part in parts):
        raise no_events_error(transforms)
