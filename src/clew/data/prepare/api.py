"""`clew.prepare`: raw events to a dataset."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import nullcontext
from dataclasses import dataclass
from dataclasses import replace as replace_in
from pathlib import Path
from typing import Any

from clew import storage
from clew.data.dataset import Dataset
from clew.data.dataset.manifest import MANIFEST
from clew.data.prepare.assembly import Assembly
from clew.data.prepare.config import PrepareConfig
from clew.data.prepare.executors import Queue, factory, rank
from clew.data.prepare.inputs import Source
from clew.data.prepare.plan import Plan
from clew.data.prepare.stages import none_left
from clew.data.prepare.worker import Job, Part, Unit, measure, run_unit, stage_keys
from clew.data.transforms import Fitted, Transform
from clew.errors import DataError, RecipeError, WorkerError
from clew.jobs.worker_process import check_not_in_worker
from clew.recipe import TYPED_IN, Recipe


@dataclass(frozen=True)
class Progress:
    """How far a preparation is."""

    stage: str
    done: int
    total: int
    events: int
    bytes: int


@dataclass(frozen=True)
class Explanation:
    """What a preparation would do: for each stage how many pieces are cached, and why the others are not."""

    dataset: str
    stages: dict[str, tuple[int, int]]
    """Stage to (cached, all)."""
    reasons: dict[str, list[str]]


def prepare(
    recipe: str | Recipe | type[Recipe],
    config: PrepareConfig | None = None,
    *,
    replace: bool = False,
    verify: bool = False,
    executor: Executor | str | None = None,
    progress: Callable[[Progress], None] | None = None,
    **settings: Any,
) -> Dataset:
    """Make a dataset from raw events, or return the one already there if nothing it depends on has changed.

    `settings` are those of `PrepareConfig`, laid over `config`:
    `clew.prepare("tracking", input=["events/*.txt"], output="dataset", workers=2)`. `verify` reads every input and
    shard again instead of trusting size and time. `executor` may also be a `concurrent.futures.Executor` of your own.

    Raises:
        DataError: an input cannot be used, or `output` holds another dataset and `replace` is false.
        WorkerError: a piece of data kills whoever works on it; under MPI, on the other ranks, where rank 0 failed.
    """
    check_not_in_worker("clew.prepare")
    if isinstance(executor, str):
        settings["executor"] = executor
    plan = Plan(recipe, config, settings, verify=verify)
    if storage.is_url(plan.config.output):
        return _to_store(plan, replace=replace, verify=verify, executor=executor, progress=progress)
    output = storage.local_path(plan.config.output)
    if _usable(output, plan.key, replace=replace, verify=verify):
        return Dataset(output)
    open_executor, width = factory(plan.config.executor, _workers(plan))
    if isinstance(executor, Executor):
        open_executor = lambda: nullcontext(executor)  # noqa: E731
    with Queue(open_executor, width) as queue:
        if not queue.serves:
            _run(plan, queue, progress or (lambda _: None))
    if queue.serves and not (output / MANIFEST).exists():
        raise WorkerError(f"{output}: rank 0 did not make it, and says why")
    return Dataset(output)


def _to_store(plan: Plan, *, replace: bool, **options: Any) -> Dataset:
    """Make a dataset beside the cache, and put it into a store; one that is there already is not made again.

    Raises:
        DataError: another dataset is there and `replace` is false, or the store cannot be written.
    """
    place = plan.config.output
    there = _key_at(place)
    if there == plan.key and not options["verify"]:
        return Dataset(place)
    if there and there != plan.key and not replace:
        raise DataError(f"{storage.mask_secrets(place)} holds another dataset; name another --output, or use --replace")
    here = plan.cache.folder / "outputs" / plan.key
    try:
        made = prepare(plan.recipe, plan.config.model_copy(update={"output": str(here)}), replace=True, **options)
        if rank():  # under mpiexec one sends it for all
            return made
        storage.copy(made.path, place, replace=replace)
    finally:
        if not rank():
            shutil.rmtree(here, ignore_errors=True)
    return Dataset(place)


def _key_at(location: str) -> str:
    """The key of the dataset at a place; empty where there is none."""
    try:
        return str(json.loads(storage.read(location, MANIFEST))["key"])
    except storage.StoreUnavailableError:
        raise
    except (DataError, ValueError, KeyError):
        return ""


def fill(recipe: str | Recipe | type[Recipe], config: PrepareConfig, part: int, parts: int) -> None:
    """Do all of a preparation but its end, for the cache alone, beginning at one of several parts of the pieces.

    Many may do so at once, wherever they see the same cache: a piece that one has done, or is at, the others leave to
    it. Whoever comes late finds less to do, and one that dies leaves its share to the others.
    """
    check_not_in_worker("clew.prepare")
    plan = Plan(recipe, config, {})
    with Queue(*factory(plan.config.executor, _workers(plan))) as queue:
        if not queue.serves:
            units = plan.units()
            _pieces(plan, queue, units, lambda _: None, first=len(units) * part // parts)


def key(recipe: str | Recipe | type[Recipe], config: PrepareConfig | None = None, **settings: Any) -> str:
    """The identity of the dataset that `prepare` would make; only inputs whose hash is unknown are read."""
    return Plan(recipe, config, settings).key


def _workers(plan: Plan) -> int | None:
    """How many were asked for; a recipe that other processes cannot load is prepared in this one.

    Raises:
        RecipeError: it cannot, and several processes were asked for by name.
    """
    asked = plan.config.workers
    if plan.recipe.location or type(plan.recipe).__module__ != "__main__" or plan.config.executor == "threads":
        return asked
    if asked is not None and asked > 1:
        raise RecipeError(f"recipe {type(plan.recipe).__name__} was typed in; {TYPED_IN}")
    return 1


def _usable(output: Path, key: str, *, replace: bool, verify: bool) -> bool:
    """Whether what is asked for is there already; a dataset of that key with shards missing or cut is made again.

    Raises:
        DataError: something else is in the way.
    """
    if not output.exists():
        return False
    if not (output / MANIFEST).exists():
        raise DataError(f"{output} exists and is no dataset; name another --output")
    try:
        there = Dataset(output)
        if there.manifest.key == key:
            if not verify:
                return there.complete
            there.verify()
            return True
    except DataError as error:  # a damaged manifest or shard
        if replace:
            return False
        raise DataError(f"{error}; --replace makes it again") from error
    if not replace:
        raise DataError(f"{output} holds another dataset; name another --output, or use --replace")
    return False


def explain(recipe: str | Recipe | type[Recipe], config: PrepareConfig | None = None, **settings: Any) -> Explanation:
    """What `prepare` would find cached, and why it would not; nothing is read but inputs whose hash is unknown."""
    plan = Plan(recipe, config, settings)
    output = plan.config.output
    state = "not there"
    if storage.is_url(output):
        there = _key_at(output)
        state = "not there" if not there else "up to date" if there == plan.key else "of something else"
    elif (storage.local_path(output) / MANIFEST).exists():
        state = "up to date" if Dataset(storage.local_path(output)).manifest.key == plan.key else "of something else"
    transforms = plan.fitted_before()
    parts = plan.parts(transforms)
    keys = [stage_keys(parts, unit.source, unit.piece or 0) for unit in plan.units()]
    stages = [stage for stage in parts if transforms or stage != "transforms"]
    counts = {stage: (sum(plan.cache.has(stage, key[stage]) for key in keys), len(keys)) for stage in stages}
    return Explanation(state, counts, plan.reasons(parts))


def _pieces(
    plan: Plan, queue: Queue, units: Sequence[Unit], progress: Callable[[Progress], None], *, first: int = 0
) -> tuple[list[Transform], list[list[Part]]]:
    """All pieces through all stages, beginning at the `first`: the transforms as they were fitted, and what came of
    each piece, in their own order (sums must not depend on where one began)."""
    config, begun = plan.config, [*units[first:], *units[:first]]
    reading = {"read": plan.identity["read"], "transforms": {}, "prepare": {}}
    job = Job(plan.recipe, (), reading, plan.cache, frozenset(config.keep), config.split_by or "event")

    def measured(transform: Fitted, before: Sequence[Transform]) -> list[Any]:
        watch = _Watch("fit", units, progress)
        found = queue.run(_measure, (job, transform, list(before)), begun, label=_where, done=watch)
        measures = [part for parts in _in_order(found, first) for part in parts]
        if not measures:
            raise none_left(before)
        return measures

    transforms = plan.fitted(measured)
    job = replace_in(job, transforms=tuple(transforms), parts=plan.parts(transforms))
    done = queue.run(run_unit, (job,), begun, label=_where, done=_Watch("prepare", units, progress))
    results = _in_order(done, first)
    _check_some(units, results, transforms)
    return transforms, results


def _run(plan: Plan, queue: Queue, progress: Callable[[Progress], None]) -> None:
    config, units = plan.config, plan.units()
    transforms, results = _pieces(plan, queue, units, progress)
    with Assembly(plan.recipe, config, plan.cache) as assembly:
        assembly.write(plan.sources, _by_source(plan.sources, units, results), queue)
        assembly.publish(plan.key, plan.identity, transforms)
    plan.remember(plan.parts(transforms))
    if "prepare" not in config.keep:
        for part in (part for found in results for part in found):
            plan.cache.path("prepare", part.key).unlink(missing_ok=True)


def _in_order(found: list[list[Any]], first: int) -> list[list[Any]]:
    return [*found[len(found) - first :], *found[: len(found) - first]]


def _where(unit: Unit) -> str:
    return unit.where


def _measure(job: Job, transform: Fitted, before: list[Transform], unit: Unit) -> list[Any]:
    return measure(job, unit, transform, before)


@dataclass
class _Watch:
    """Adds up what is done and tells about it."""

    stage: str
    units: Sequence[Unit]
    tell: Callable[[Progress], None]
    done: int = 0
    events: int = 0
    read: int = 0

    def __call__(self, unit: Unit, result: list[Any]) -> None:
        self.done += 1
        self.events += sum(part.events for part in result if isinstance(part, Part))
        self.read += unit.bytes
        self.tell(Progress(self.stage, self.done, len(self.units), self.events, self.read))


def _by_source(sources: Sequence[Source], units: Sequence[Unit], results: list[list[Part]]) -> list[list[Part]]:
    place = {source: number for number, source in enumerate(sources)}
    found: list[list[Part]] = [[] for _ in sources]
    for unit, parts in zip(units, results, strict=True):
        found[place[unit.source]] += parts
    return found


def _check_some(units: Sequence[Unit], results: list[list[Part]], transforms: Sequence[Transform]) -> None:
    """That every file has events, and that some of them all are left; a file may lose all of its own."""
    counts: dict[str, int] = {}
    for unit, parts in zip(units, results, strict=True):
        location = unit.source.location
        counts[location] = counts.get(location, 0) + sum(part.read for part in parts)
    for location, count in counts.items():
        if not count:
            raise DataError(f"{location}: no events in it")
    if not any(part.events for parts in results for part in parts):
        raise none_left(transforms)
