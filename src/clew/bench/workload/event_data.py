"""The events of a workload: synthetic events, generated once and cached, or files of the user."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from clew import Table, prepare, storage
from clew.bench.workload.fixed_events import checked_files, events_checksum
from clew.core.config import to_data
from clew.data.dataset import Dataset
from clew.data.prepare.generate import generate
from clew.errors import DataError
from clew.recipe import Recipe
from clew.storage.transfer_state import cache_folder

VALIDATION_SHARE = 0.1
"""Number of validation events divided by the number of training events."""
_FEWEST = 4
"""Smallest number of validation events."""


@dataclass(frozen=True)
class EventData:
    """A dataset and its checksum."""

    dataset: Dataset
    synthetic: bool
    checksum: str
    """SHA-256 of the content of all shards."""
    fixed: str | None = None
    """Checksum of the fixed events they are taken from; None: they were generated, or come from the user's files."""


@dataclass(frozen=True)
class EventRequest:
    """The events that a workload needs."""

    events: int
    """Training events; a tenth more are for validation."""
    seed: int
    files: Sequence[str] = ()
    """Files to read the events from; empty: synthetic events."""
    fixed: str | None = None
    """A folder of fixed synthetic events, whose first events are used; None: they are generated."""


def make_event_data(
    recipe: Recipe, request: EventRequest, output: Path, notify: Callable[[str], None] = lambda text: None
) -> EventData:
    """Return the dataset of a workload. Synthetic events are generated once and cached.

    Args:
        recipe: The recipe.
        request: The events.
        output: Folder for the dataset of the user's files.
        notify: Called with a line of text about the progress.

    Raises:
        DataError: The files hold too few events, cannot be read, or differ from their checksums.
    """
    if request.fixed is not None:
        place = Path(request.fixed)
        notify("checking the fixed events")
        files = replace(request, files=checked_files(place))
        dataset = _from_files(recipe, files, output, notify)
        return EventData(dataset, True, dataset_checksum(dataset), events_checksum(place))
    if request.files:
        dataset = _from_files(recipe, request, output, notify)
        return EventData(dataset, False, dataset_checksum(dataset))
    folder = cache_folder() / "bench" / _key(recipe, request.events, request.seed)
    if not (folder / "dataset" / "manifest.json").exists():
        _generate(recipe, request, folder, notify)
    dataset = Dataset(folder / "dataset")
    return EventData(dataset, True, dataset_checksum(dataset))


def _validation_events(events: int) -> int:
    return max(_FEWEST, round(VALIDATION_SHARE * events))


def _from_files(recipe: Recipe, request: EventRequest, output: Path, notify: Callable[[str], None]) -> Dataset:
    """Prepare the first events of the files, in the order of the files."""
    folder, counts = output / "selected-events", {"train": request.events, "val": _validation_events(request.events)}
    shutil.rmtree(folder, ignore_errors=True)
    notify(f"reading {sum(counts.values()):,} events")
    paths = []
    for pattern in request.files:
        matches = storage.expand(pattern)
        if not matches:
            raise DataError(f"--data {pattern}: no such file")
        paths += matches
    written = _write_splits((piece for path in paths for piece in recipe.read(path)), counts, folder)
    if written < sum(counts.values()):
        need = f"{counts['train']:,} training and {counts['val']:,} validation events are needed"
        source = "--data holds" if request.fixed is None else f"{request.fixed} holds"
        raise DataError(f"{source} {written:,} events, but {need}; add files, or lower --events")
    notify("preparing them")
    inputs = {name: [str(folder / name)] for name in counts}
    dataset = prepare(recipe, input=inputs, output=str(output / "dataset"), replace=True)
    shutil.rmtree(folder)
    return dataset


def _write_splits(pieces: Iterable[Table], counts: dict[str, int], folder: Path) -> int:
    """Write the first events of each split to files. Return the number of events written."""
    remaining, written, number = dict(counts), 0, 0
    for piece in pieces:
        start = 0
        while start < len(piece) and any(remaining.values()):
            split = next(name for name, count in remaining.items() if count)
            part = piece.slice(start, min(len(piece), start + remaining[split]))
            path = folder / split / f"{number:05d}.h5"
            path.parent.mkdir(parents=True, exist_ok=True)
            part.save(path)
            remaining[split] -= len(part)
            start, written, number = start + len(part), written + len(part), number + 1
        if not any(remaining.values()):
            break
    return written


def _generate(recipe: Recipe, request: EventRequest, folder: Path, notify: Callable[[str], None]) -> None:
    count, done = _validation_events(request.events), 0
    total = request.events + count

    def progress(path: Path, number: int) -> None:
        nonlocal done
        done += number
        notify(f"generating events, once: {done:,} of {total:,}")

    notify(f"generating {total:,} events, once")
    for name, number, seed in (("train", request.events, request.seed), ("val", count, request.seed + 1)):
        shutil.rmtree(folder / name, ignore_errors=True)
        generate(recipe, number, seed, folder / name, progress=progress)
    notify("preparing them")
    inputs = {name: [str(folder / name)] for name in ("train", "val")}
    prepare(recipe, input=inputs, output=str(folder / "dataset"), replace=True)
    for name in inputs:
        shutil.rmtree(folder / name)


def _key(recipe: Recipe, events: int, seed: int) -> str:
    """Return a key of all that the events depend on: their number, the seed, the recipe's settings and code."""
    parts = [recipe.location, to_data(recipe.config), events, seed, code_checksum(_code_of(recipe))]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _code_of(recipe: Recipe) -> Path:
    """Return the folder of a shipped recipe, or the file of another."""
    import inspect

    file = Path(inspect.getfile(type(recipe)))
    return file.parent if "recipes" in file.parts and "clew" in file.parts else file


def code_checksum(path: Path) -> str:
    """Return the SHA-256 of the Python files in a folder, or of one file."""
    digest = hashlib.sha256()
    files = [path] if path.is_file() else sorted(path.rglob("*.py"))
    for file in files:
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()


def dataset_checksum(dataset: Dataset) -> str:
    """Return the SHA-256 over the checksums of all shards."""
    digest = hashlib.sha256()
    for name, shards in sorted(dataset.manifest.splits.items()):
        digest.update(name.encode() + b"".join(shard.sha256.encode() for shard in shards))
    return digest.hexdigest()
