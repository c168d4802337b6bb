"""`clew.prepare`: raw events to a dataset."""

from __future__ import annotations

import dataclasses
import multiprocessing
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from clew import transforms as T
from clew.config import to_data
from clew.dataset import Dataset, Manifest
from clew.dataset.manifest import MANIFEST, Input, Shard
from clew.errors import DataError, WorkerError
from clew.files import sha256
from clew.ledger.environment import allowed_cores
from clew.prepare import stages
from clew.prepare.config import PrepareConfig
from clew.prepare.inputs import Source, find, split_of
from clew.recipe import Recipe, resolve
from clew.table import Table, concat
from clew.transforms import Fitted, Transform

Progress = Callable[[int, int, int], None]
"""Called with files done, files in all, events done."""

_SPLIT = "clew_split"


@dataclass(frozen=True)
class _Part:
    """A chunk of samples a worker left on disk."""

    path: Path
    events: int


def prepare(
    recipe: str | Recipe | type[Recipe],
    config: PrepareConfig | None = None,
    *,
    replace: bool = False,
    progress: Progress | None = None,
    **settings: Any,
) -> Dataset:
    """Make a dataset from raw events, or return the one already there if nothing it depends on has changed.

    `settings` are those of `PrepareConfig`, laid over `config`:
    `clew.prepare("tracking", input=["events/*.txt"], output="dataset", workers=2)`.

    Raises:
        DataError: an input cannot be used, or `output` holds another dataset and `replace` is false.
    """
    chosen = PrepareConfig.model_validate({**(to_data(config) if config else {}), **settings})
    work = resolve(recipe)
    sources = find(chosen.input)
    identity = {
        "inputs": [source.sha256 for source in sources],
        "split": chosen.split,
        "seed": chosen.seed,
        "shard_mb": chosen.shard_mb,
        **stages.identity(work),
    }
    key, output = stages.key_of(identity), Path(chosen.output)
    if (output / MANIFEST).exists() and Dataset(output).manifest.key == key:
        return Dataset(output)
    if output.exists() and not replace:
        raise DataError(f"{output} exists and holds something else; name another --output, or use --replace")
    with _Build(work, chosen, sources, progress or (lambda *_: None)) as build:
        manifest = build.run(key, identity)
        build.publish(manifest, output)
    return Dataset(output)


class _Build:
    """One preparation: a temporary folder beside the output, workers, and in the end a rename."""

    def __init__(self, recipe: Recipe, config: PrepareConfig, sources: Sequence[Source], progress: Progress) -> None:
        self.recipe, self.config, self.sources, self.progress = recipe, config, sources, progress
        self.workers = min(config.workers or allowed_cores(), len(sources))

    def __enter__(self) -> _Build:
        parent = Path(self.config.output).absolute().parent
        parent.mkdir(parents=True, exist_ok=True)
        self.folder = Path(tempfile.mkdtemp(prefix=f".{Path(self.config.output).name}-", dir=parent))
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, key: str, identity: dict[str, Any]) -> Manifest:
        """Read, transform, prepare, write shards."""
        with _pool(self.workers) as pool:
            fitted = T.fit(self.recipe.transforms(), lambda: (), lambda *a: self._measure(pool, *a))
            parts = self._map(pool, _write_parts, fitted, self.config, self.folder)
        shards = {name: self._shards(parts, place, name) for place, name in enumerate(self.config.split)}
        schema = _table(parts[0][0]).drop(_SPLIT).schema
        return Manifest(
            key=key,
            recipe=self.recipe.location or type(self.recipe).__name__,
            columns={name: dataclasses.asdict(field) for name, field in schema.items()},
            splits={name: tuple(files) for name, files in shards.items()},
            inputs=tuple(_input(source, part) for source, part in zip(self.sources, parts, strict=True)),
            settings=identity["settings"],
            transforms=tuple(to_data(transform) for transform in fitted),
        )

    def publish(self, manifest: Manifest, output: Path) -> None:
        """Put the finished dataset in its place, in the way of an old one if it was there."""
        for leftover in self.folder.glob("part-*.h5"):
            leftover.unlink()
        manifest.save(self.folder)
        self.folder.chmod(0o755)
        if output.exists():
            old = self.folder.with_name(f"{self.folder.name}-old")
            output.rename(old)
            self.folder.rename(output)
            shutil.rmtree(old)
        else:
            self.folder.rename(output)

    def _measure(self, pool: Executor | None, transform: Fitted, before: Sequence[Transform]) -> list[Any]:
        return [part for parts in self._map(pool, _measure, transform, list(before)) for part in parts]

    def _map(self, pool: Executor | None, work: Callable[..., Any], *extra: Any) -> list[Any]:
        """`work(recipe, source, place, *extra)` for every source; results in the order of sources."""
        if pool is None:
            results = []
            for place, source in enumerate(self.sources):
                results.append(work(self.recipe, source, place, *extra))
                self.progress(place + 1, len(self.sources), _count(results))
            return results
        futures = {pool.submit(work, self.recipe, s, place, *extra): s for place, s in enumerate(self.sources)}
        return self._collect(futures)

    def _collect(self, futures: dict[Future[Any], Source]) -> list[Any]:
        done = []
        try:
            for future in as_completed(futures):
                done.append(future.result())
                self.progress(len(done), len(futures), _count(done))
        except BrokenProcessPool as error:
            lost = [str(source.path) for future, source in futures.items() if not future.done() or future.exception()]
            raise WorkerError(f"a worker died while preparing one of: {', '.join(lost[:4])}") from error
        finally:
            for future in futures:
                future.cancel()
        return [future.result() for future in futures]

    def _shards(self, parts: list[list[_Part]], place: int, name: str) -> list[Shard]:
        shards: list[Shard] = []
        for table in _batched(_of_split(parts, place), self.config.shard_mb * 1e6):
            path = self.folder / f"{name}-{len(shards):05d}.h5"
            table.save(path)
            shards.append(Shard(file=path.name, events=len(table), bytes=path.stat().st_size, sha256=sha256(path)))
        return shards


def _pool(workers: int) -> Any:
    if workers == 1:
        return nullcontext(None)
    # a forkserver forks from a clean process that has only what is needed; macOS has no safe fork
    context = multiprocessing.get_context("spawn" if sys.platform == "darwin" else "forkserver")
    if context.get_start_method() == "forkserver":
        context.set_forkserver_preload(["clew.prepare.api", "clew.table.hdf5"])
    return ProcessPoolExecutor(workers, mp_context=context)


def _write_parts(
    recipe: Recipe, source: Source, place: int, fitted: list[Transform], config: PrepareConfig, folder: Path
) -> list[_Part]:
    parts: list[_Part] = []
    first = 0
    for table in stages.samples(recipe, fitted, source.path):
        path = folder / f"part-{place:06d}-{len(parts):06d}.h5"
        split = split_of(source, first, len(table), config.split, config.seed)
        table.join({_SPLIT: split.astype(np.int8)}).save(path)
        parts.append(_Part(path, len(table)))
        first += len(table)
    return parts


def _measure(recipe: Recipe, source: Source, place: int, transform: Fitted, before: list[Transform]) -> list[Any]:
    return [transform.measure(T.base.apply(before, chunk)) for chunk in stages.events(recipe, source.path)]


def _of_split(parts: list[list[_Part]], place: int) -> Iterator[Table]:
    for files in parts:
        for part in files:
            table = _table(part)
            chosen = table.filter(table.fixed(_SPLIT) == place).drop(_SPLIT)
            if len(chosen):
                yield chosen


def _batched(tables: Iterator[Table], target: float) -> Iterator[Table]:
    waiting: list[Table] = []
    size = 0.0
    for table in tables:
        waiting.append(table)
        size += table.nbytes
        if size >= target:
            yield concat(waiting)
            waiting, size = [], 0.0
    if waiting:
        yield concat(waiting)


def _table(part: _Part) -> Table:
    return Table.load(part.path)


def _count(results: list[Any]) -> int:
    return sum(part.events for parts in results for part in parts if isinstance(part, _Part))


def _input(source: Source, parts: list[_Part]) -> Input:
    events = sum(part.events for part in parts)
    return Input(name=source.path.name, bytes=source.bytes, sha256=source.sha256, events=events)
