"""Datasets for cross-validation: the events of train and val dealt into folds, each held out once.

The events are written once, a shard a fold; a fold's dataset is a manifest that calls one shard `val` and the others
`train`. Fitted transforms are those of the dataset they come from.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from clew.core.files import atomic, sha256
from clew.data.dataset import Dataset
from clew.data.dataset.manifest import LENGTHS, Shard
from clew.data.prepare.config import PrepareConfig
from clew.data.prepare.inputs import Source, split_of, split_of_files
from clew.data.table import Table, concat
from clew.errors import DataError
from clew.tuning.config import FoldsConfig

_DEALT = ("train", "val")
Numbers = NDArray[np.int64]


def check_folds(dataset: Dataset, config: FoldsConfig, prepare: PrepareConfig) -> None:
    """That there are as many folds to be had.

    Raises:
        DataError: there are not.
    """
    groups = np.unique(_groups(dataset, config, prepare))
    if len(groups) < config.count:
        what = "files" if config.by == "file" else "events"
        raise DataError(
            f"{dataset.path}: {len(groups)} {what} in train and val cannot be dealt into {config.count} folds"
        )


def write_folds(folder: Path, dataset: Dataset, config: FoldsConfig, prepare: PrepareConfig) -> list[Path]:
    """Write the folds' datasets under `folder`, if they are not there, and return where they are."""
    places = [folder / f"fold-{number}" for number in range(config.count)]
    if all((place / "manifest.json").exists() for place in places):
        return places
    whole = concat([dataset.read(name) for name in _DEALT if dataset.splits.get(name)])
    fold = _dealt(_groups(dataset, config, prepare), config)
    shards = [
        _shard(folder / f"shard-{number}.h5", whole.take(np.flatnonzero(fold == number)))
        for number in range(config.count)
    ]
    lengths = [{name: whole.ragged(name).lengths[fold == n] for name in _sets(dataset)} for n in range(config.count)]
    for number, place in enumerate(places):
        _write(place, dataset, shards, lengths, number, config)
    return places


def _dealt(groups: Numbers, config: FoldsConfig) -> Numbers:
    """The fold of every event: groups in random order, dealt one by one, so that folds are as equal as can be."""
    names, member = np.unique(groups, return_inverse=True)
    order = np.random.default_rng(config.seed).permutation(len(names))
    return np.asarray(order % config.count, dtype=np.int64)[member]


def _groups(dataset: Dataset, config: FoldsConfig, prepare: PrepareConfig) -> Numbers:
    """What stays together, for every event of train and then of val."""
    if config.by == "event":
        return np.arange(sum(dataset.splits.get(name, 0) for name in _DEALT))
    files = _files(dataset, prepare)
    return np.concatenate([files[name] for name in _DEALT if name in files])


def _files(dataset: Dataset, prepare: PrepareConfig) -> dict[str, Numbers]:
    """The number of the input file of every event, by split: where events went is known by how they were prepared.

    Raises:
        DataError: the settings of prepare are not those the dataset was made with.
    """
    inputs, shares = dataset.manifest.inputs, prepare.shares
    names = list(dataset.splits)
    if all(each.split for each in inputs):
        places = [np.full(each.events, names.index(each.split)) for each in inputs]
    else:
        sources = [Source(each.name, each.bytes, each.sha256) for each in inputs]
        if prepare.split_by == "file":
            whole = split_of_files(sources, [each.events for each in inputs], shares, prepare.seed)
            places = [np.full(each.events, place) for each, place in zip(inputs, whole, strict=True)]
        else:
            places = [split_of(s, 0, i.events, shares, prepare.seed) for s, i in zip(sources, inputs, strict=True)]
    found = {
        name: np.concatenate([np.full(int((rows == n).sum()), file) for file, rows in enumerate(places)])
        for n, name in enumerate(names)
    }
    if prepare.split_by not in (None, "event", "file") or any(len(found[n]) != dataset.splits[n] for n in names):
        told = "folds by file need `prepare` as it was when the dataset was made (split, split_by, seed)"
        raise DataError(f"{dataset.path}: {told}")
    return found


def _sets(dataset: Dataset) -> set[str]:
    return set(dataset.manifest.item_sets.values())


def _shard(path: Path, table: Table) -> Shard:
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic(path) as temporary:
        table.save(temporary)
    return Shard(file=f"../{path.name}", events=len(table), bytes=path.stat().st_size, sha256=sha256(path))


def _write(
    place: Path,
    dataset: Dataset,
    shards: list[Shard],
    lengths: Sequence[Mapping[str, NDArray[np.int64]]],
    number: int,
    config: FoldsConfig,
) -> None:
    """A fold: one shard to validate on, the others to learn from, and whatever else the dataset has."""
    place.mkdir(parents=True, exist_ok=True)
    rest = [n for n in range(config.count) if n != number]
    kept = {name: found for name, found in dataset.manifest.splits.items() if name not in _DEALT}
    whole = dataset.path.absolute()
    splits = {
        "train": tuple(shards[n] for n in rest),
        "val": (shards[number],),
        **{n: tuple(s.model_copy(update={"file": str(whole / s.file)}) for s in found) for n, found in kept.items()},
    }
    path = place / LENGTHS
    with atomic(path) as temporary, h5py.File(temporary, "w") as file:
        for split, members in {"train": rest, "val": [number]}.items():
            group = file.create_group(split)
            for name in _sets(dataset):
                group.create_dataset(name, data=np.concatenate([lengths[n][name] for n in members]))
        with contextlib.suppress(OSError), h5py.File(whole / LENGTHS, "r") as old:
            for split in kept:
                old.copy(split, file)
    events = sum(shard.events for found in splits.values() for shard in found)
    mine = Shard(file=LENGTHS, events=events, bytes=path.stat().st_size, sha256=sha256(path))
    key = hashlib.sha256(f"{dataset.manifest.key} {config.model_dump_json()} {number}".encode()).hexdigest()
    changed = {"key": key, "splits": splits, "lengths": mine}
    dataset.manifest.model_copy(update=changed).save(place)
