"""`clew.prepare`: raw events to a dataset."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import nullcontext
from dataclasses import dataclass
from dataclasses import replace as replace_in
from pathlib import Path
from typing import Any

from clew import storage
from clew.config import Document, to_data, validate
from clew.dataset import Dataset
from clew.dataset.manifest import MANIFEST
from clew.errors import DataError, RecipeError
from clew.launch.worker import check_not_inside
from clew.prepare.assemble import Assembly
from clew.prepare.cache import Cache
from clew.prepare.config import PrepareConfig
from clew.prepare.executors import Queue, factory, rank
from clew.prepare.inputs import Beside, Hashes, Source, find
from clew.prepare.keys import Parts, differences, key_of, stage_parts
from clew.prepare.stages import none_left
from clew.prepare.work import Job, Part, Unit, located, measure, run_unit, stage_keys
from clew.readers import Pieces, Reader
from clew.recipe import TYPED_IN, Recipe, resolve
from clew.transforms import Fitted, Transform, fit


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
        WorkerError: a piece of data kills whoever works on it.
    """
    check_not_inside("clew.prepare")
    if isinstance(executor, str):
        settings["executor"] = executor
    plan = _Plan(recipe, config, settings, verify=verify)
    if storage.is_url(plan.config.output):
        return _to_store(plan, replace=replace, verify=verify, executor=executor, progress=progress)
    output = storage.local(plan.config.output)
    if _usable(output, plan.key, replace=replace, verify=verify):
        return Dataset(output)
    open_executor, width = factory(plan.config.executor, _workers(plan))
    if isinstance(executor, Executor):
        open_executor = lambda: nullcontext(executor)  # noqa: E731
    with Queue(open_executor, width) as queue:
        if not queue.serves:
            _run(plan, queue, progress or (lambda _: None))
    return Dataset(output)


def _to_store(plan: _Plan, *, replace: bool, **options: Any) -> Dataset:
    """Make a dataset beside the cache, and put it into a store; one that is there already is not made again.

    Raises:
        DataError: another dataset is there and `replace` is false, or the store cannot be written.
    """
    place = plan.config.output
    there = _key_at(place)
    if there == plan.key and not options["verify"]:
        return Dataset(place)
    if there and there != plan.key and not replace:
        raise DataError(f"{storage.masked(place)} holds another dataset; name another --output, or use --replace")
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
    except storage.GoneError:
        raise
    except (DataError, ValueError, KeyError):
        return ""


def fill(recipe: str | Recipe | type[Recipe], config: PrepareConfig, part: int, parts: int) -> None:
    """Do all of a preparation but its end, for the cache alone, beginning at one of several parts of the pieces.

    Many may do so at once, wherever they see the same cache: a piece that one has done, or is at, the others leave to
    it. Whoever comes late finds less to do, and one that dies leaves its share to the others.
    """
    check_not_inside("clew.prepare")
    plan = _Plan(recipe, config, {})
    with Queue(*factory(plan.config.executor, _workers(plan))) as queue:
        if not queue.serves:
            units = plan.units()
            _pieces(plan, queue, units, lambda _: None, first=len(units) * part // parts)


def key(recipe: str | Recipe | type[Recipe], config: PrepareConfig | None = None, **settings: Any) -> str:
    """The identity of the dataset that `prepare` would make; only inputs whose hash is unknown are read."""
    return _Plan(recipe, config, settings).key


def _workers(plan: _Plan) -> int | None:
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
    plan = _Plan(recipe, config, settings)
    output = plan.config.output
    state = "not there"
    if storage.is_url(output):
        there = _key_at(output)
        state = "not there" if not there else "up to date" if there == plan.key else "of something else"
    elif (storage.local(output) / MANIFEST).exists():
        state = "up to date" if Dataset(storage.local(output)).manifest.key == plan.key else "of something else"
    transforms = plan.fitted_before()
    parts = plan.parts(transforms)
    keys = [stage_keys(parts, unit.source, unit.piece or 0) for unit in plan.units()]
    stages = [stage for stage in parts if transforms or stage != "transforms"]
    counts = {stage: (sum(plan.cache.has(stage, key[stage]) for key in keys), len(keys)) for stage in stages}
    return Explanation(state, counts, plan.reasons(parts))


class _Plan:
    """What is to be made from what; knows the dataset's key before any event is read."""

    def __init__(
        self,
        recipe: str | Recipe | type[Recipe],
        config: PrepareConfig | None,
        settings: dict[str, Any],
        *,
        verify: bool = False,
    ) -> None:
        self.recipe = resolve(recipe)
        below = to_data(config) if config else self.recipe.defaults.get("prepare", {})
        self.config = validate(PrepareConfig, Document({**below, **settings}, source="clew.prepare"))
        self.cache = Cache(Path(self.config.cache) if self.config.cache else storage.cache_folder())
        hashes = Hashes(self.cache, trust=not verify)
        self.sources = find(self.config.input, hashes, self._beside)
        self.readers = self._readers()
        self.identity = self._identity()
        self.key = key_of(self.identity)

    def _identity(self) -> Parts:
        """Everything the dataset depends on."""
        config, inputs = self.config, [source.sha256 for source in self.sources]
        if isinstance(config.input, dict):
            chosen: Parts = {"split": {source.sha256: source.split for source in self.sources}}
        else:
            chosen = {"split": config.shares, "split_by": config.split_by or "event", "seed": config.seed}
        chosen["shard_mb"] = config.shard_mb
        return {"inputs": inputs, "dataset": chosen, **self.parts(self.recipe.transforms())}

    def parts(self, transforms: Sequence[Transform]) -> dict[str, Parts]:
        """What each stage depends on."""
        return stage_parts(self.recipe, transforms, self.readers)

    def units(self) -> list[Unit]:
        """The pieces of all files."""
        found = []
        for source in self.sources:
            try:
                pieces = self.recipe.read(source.location)
                if isinstance(pieces, Pieces):
                    names = [f"{piece.start}-{piece.stop}" for piece in pieces.plan]
                elif isinstance(pieces, Sequence):
                    names = [f"piece {number}" for number in range(len(pieces))]
                else:
                    found.append(Unit(source, None, source.location, source.bytes))
                    continue
                share = source.bytes // max(len(names), 1)
                if len(names) == 1:
                    found.append(Unit(source, 0, source.location, share))
                else:
                    found += [Unit(source, i, f"{source.location} ({name})", share) for i, name in enumerate(names)]
            except DataError as error:
                raise DataError(located(error, source.location)) from error
        return found

    def fitted_before(self) -> list[Transform]:
        """The transforms, with the numbers they were last fitted to where nothing has changed since."""
        saved = self.cache.note(f"fit-{self._fit_key()}")
        asked = list(self.recipe.transforms())
        return [type(t).model_validate(s) for t, s in zip(asked, saved, strict=True)] if saved else asked

    def fitted(self, measured: Callable[[Fitted, Sequence[Transform]], list[Any]]) -> list[Transform]:
        """The transforms with their numbers filled in, from the cache or from a pass over the events."""
        done = self.fitted_before()
        if any(isinstance(t, Fitted) and t.needs_fit for t in done):
            done = fit(done, lambda: (), measured)
            self.cache.take_note(f"fit-{self._fit_key()}", [to_data(transform) for transform in done])
        return done

    def reasons(self, parts: dict[str, Parts]) -> dict[str, list[str]]:
        """Against the last preparation into the same place: what changed, stage by stage."""
        before = self.cache.note(self._note())
        if before is None:
            return {stage: ["nothing was prepared into this place before"] for stage in ("inputs", *parts)}
        old, new = set(before["inputs"]), {source.sha256: source.location for source in self.sources}
        gone = len(old - new.keys())
        changed = [
            f"{storage.masked(location)} is new or changed" for digest, location in new.items() if digest not in old
        ]
        changed += [f"{gone} inputs of last time are gone or changed"] if gone else []
        split = self._changes(before["dataset"])
        return {"inputs": changed, "dataset": split, **{s: differences(before[s], parts[s]) for s in parts}}

    def _changes(self, before: Parts) -> list[str]:
        """Of how events are split and stored; files by their names, those that are gone were told of already."""
        lines = differences(before, self.identity["dataset"])
        for source in self.sources:
            lines = [line.replace(source.sha256, source.location) for line in lines]
        return [line for line in lines if not re.match(r"split\.[0-9a-f]{64}:", line)]

    def remember(self, parts: dict[str, Parts]) -> None:
        """For the next `explain`."""
        self.cache.take_note(self._note(), {**self.identity, **parts})

    def _fit_key(self) -> str:
        return key_of([self.identity["inputs"], self.identity["read"], self.identity["transforms"]])

    def _note(self) -> str:
        return f"last-{key_of([self.recipe.location, str(Path(self.config.output).absolute())])}"

    def _beside(self, location: str) -> Beside:
        pieces = self.recipe.read(location)
        if not isinstance(pieces, Pieces):
            return Beside()
        return Beside(pieces.reader.companions(location), pieces.reader.beside(location))

    def _readers(self) -> list[Reader]:
        """The readers in use, each once."""
        found = [self.recipe.read(source.location) for source in self.sources]
        used = {pieces.reader.model_dump_json(): pieces.reader for pieces in found if isinstance(pieces, Pieces)}
        return list(used.values())


def _pieces(
    plan: _Plan, queue: Queue, units: Sequence[Unit], progress: Callable[[Progress], None], *, first: int = 0
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


def _run(plan: _Plan, queue: Queue, progress: Callable[[Progress], None]) -> None:
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
