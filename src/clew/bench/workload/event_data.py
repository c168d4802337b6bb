"""The events a workload runs on: synthetic ones made once and kept, or files of the user's."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from clew import Table, prepare, storage
from clew.core.config import to_data
from clew.data.dataset import Dataset
from clew.data.prepare.generate import generate
from clew.errors import DataError
from clew.recipe import Recipe
from clew.storage.transfer_state import cache_folder

HELD_OUT = 0.1
"""Events to validate on, as a share of those to learn from, on top of them."""
_FEWEST = 4


@dataclass(frozen=True)
class EventData:
    """A dataset and what identifies it."""

    dataset: Dataset
    synthetic: bool
    checksum: str
    """SHA-256 over the content of all shards."""


def make_event_data(
    recipe: Recipe,
    *,
    events: int,
    seed: int,
    data: Sequence[str] = (),
    output: Path,
    told: Callable[[str], None] = lambda note: None,
) -> EventData:
    """The dataset for so many events to learn from and a tenth more to validate on, made, or the first of those in the
    files that `data` names.

    Raises:
        DataError: the files hold too few, or something else.
    """
    if data:
        made = _given(recipe, events, data, output, told)
        return EventData(made, False, dataset_checksum(made))
    folder = cache_folder() / "bench" / _key(recipe, events, seed)
    dataset = folder / "dataset"
    if not (dataset / "manifest.json").exists():
        _make(recipe, events, seed, folder, told)
    found = Dataset(dataset)
    return EventData(found, True, dataset_checksum(found))


def _held_out(events: int) -> int:
    return max(_FEWEST, round(HELD_OUT * events))


def _given(recipe: Recipe, events: int, data: Sequence[str], output: Path, told: Callable[[str], None]) -> Dataset:
    """The first events of these files, file after file."""
    folder, wanted = output / "events", {"train": events, "val": _held_out(events)}
    shutil.rmtree(folder, ignore_errors=True)
    told(f"reading {sum(wanted.values()):,} events")
    files = {one: storage.expand(one) for one in data}
    for one in (one for one, own in files.items() if not own):
        raise DataError(f"--data {one}: no such file")
    found = _dealt((piece for own in files.values() for file in own for piece in recipe.read(file)), wanted, folder)
    if found < sum(wanted.values()):
        need = f"{events:,} to learn from and {wanted['val']:,} to validate on"
        raise DataError(f"--data holds {found:,} events, and {need} are needed; give more files, or fewer --events")
    told("preparing them")
    inputs = {name: [str(folder / name)] for name in wanted}
    made = prepare(recipe, input=inputs, output=str(output / "dataset"), replace=True)
    shutil.rmtree(folder)
    return made


def _dealt(pieces: Iterable[Table], wanted: dict[str, int], folder: Path) -> int:
    """Write the first so many of the events of each split; how many there were, up to all that are wanted."""
    left, done, number = dict(wanted), 0, 0
    for piece in pieces:
        place = 0
        while place < len(piece) and any(left.values()):
            split = next(name for name, count in left.items() if count)
            own = piece.slice(place, min(len(piece), place + left[split]))
            path = folder / split / f"{number:05d}.h5"
            path.parent.mkdir(parents=True, exist_ok=True)
            own.save(path)
            left[split] -= len(own)
            place, done, number = place + len(own), done + len(own), number + 1
        if not any(left.values()):
            break
    return done


def _make(recipe: Recipe, events: int, seed: int, folder: Path, told: Callable[[str], None]) -> None:
    count, done = _held_out(events), 0

    def wrote(path: Path, number: int) -> None:
        nonlocal done
        done += number
        told(f"making events, once: {done:,} of {events + count:,}")

    told(f"making {events + count:,} events, once")
    for name, number, own in (("train", events, seed), ("val", count, seed + 1)):
        shutil.rmtree(folder / name, ignore_errors=True)
        generate(recipe, number, own, folder / name, progress=wrote)
    told("preparing them")
    inputs = {name: [str(folder / name)] for name in ("train", "val")}
    prepare(recipe, input=inputs, output=str(folder / "dataset"), replace=True)
    for name in inputs:
        shutil.rmtree(folder / name)


def _key(recipe: Recipe, events: int, seed: int) -> str:
    """What the events depend on: how many, the seed, the recipe's settings and its code."""
    told = [recipe.location, to_data(recipe.config), events, seed, code_checksum(_own(recipe))]
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _own(recipe: Recipe) -> Path:
    """The folder of a shipped recipe, or the one file of another."""
    import inspect

    file = Path(inspect.getfile(type(recipe)))
    return file.parent if "recipes" in file.parts and "clew" in file.parts else file


def code_checksum(place: Path) -> str:
    """SHA-256 over the Python files of a folder, or of one file."""
    digest = hashlib.sha256()
    files = [place] if place.is_file() else sorted(place.rglob("*.py"))
    for path in files:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def dataset_checksum(dataset: Dataset) -> str:
    """SHA-256 over those of the shards."""
    digest = hashlib.sha256()
    for name, shards in sorted(dataset.manifest.splits.items()):
        digest.update(name.encode() + b"".join(shard.sha256.encode() for shard in shards))
    return digest.hexdigest()
