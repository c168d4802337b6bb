"""Datasets for cross-validation: the events of train and val are divided into folds, and each fold is held out once.

The events are written once, one shard per fold. The dataset of a fold is a manifest in which one shard is `val` and the
others are `train`. Fitted transforms are those of the original dataset.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from clew.core.files import atomic_path, sha256
from clew.data.dataset import Dataset
from clew.data.dataset.manifest import LENGTHS, Shard
from clew.data.prepare.config import PrepareConfig
from clew.data.prepare.inputs import InputSource, split_of, split_of_files
from clew.data.table import Table, concat
from clew.errors import DataError
from clew.tuning.config import FoldsConfig

_SPLITS = ("train", "val")
"""The splits that are divided into folds."""
Numbers = NDArray[np.int64]


def check_folds(dataset: Dataset, config: FoldsConfig, prepare: PrepareConfig) -> None:
    """Check that the dataset can be divided into the requested number of folds.

    Raises:
        DataError: There are too few events or files.
    """
    groups = np.unique(_groups(dataset, config, prepare))
    if len(groups) < config.count:
        kind = "files" if config.by == "file" else "events"
        raise DataError(
            f"{dataset.path}: {len(groups)} {kind} in train and val cannot be divided into {config.count} folds"
        )


def write_folds(folder: Path, dataset: Dataset, config: FoldsConfig, prepare: PrepareConfig) -> list[Path]:
    """Write the datasets of the folds under `folder`, unless they exist, and return their paths."""
    paths = [folder / f"fold-{number}" for number in range(config.count)]
    if all((path / "manifest.json").exists() for path in paths):
        return paths
    events = concat([dataset.read(name) for name in _SPLITS if dataset.splits.get(name)])
    fold = _fold_of_events(_groups(dataset, config, prepare), config)
    shards = [
        _shard(folder / f"shard-{number}.h5", events.take(np.flatnonzero(fold == number)))
        for number in range(config.count)
    ]
    lengths = [
        {name: events.ragged(name).lengths[fold == n] for name in _item_sets(dataset)} for n in range(config.count)
    ]
    for number, path in enumerate(paths):
        _FoldWriter(dataset, shards, lengths, config).write(path, number)
    return paths


def _fold_of_events(groups: Numbers, config: FoldsConfig) -> Numbers:
    """Return the fold of every event. Groups are assigned in random order, so that folds have equal numbers of them."""
    names, group_of_event = np.unique(groups, return_inverse=True)
    order = np.random.default_rng(config.seed).permutation(len(names))
    return np.asarray(order % config.count, dtype=np.int64)[group_of_event]


def _groups(dataset: Dataset, config: FoldsConfig, prepare: PrepareConfig) -> Numbers:
    """Return the group of every event of train and then of val. A group stays in one fold."""
    if config.by == "event":
        return np.arange(sum(dataset.splits.get(name, 0) for name in _SPLITS))
    files = _files_of_events(dataset, prepare)
    return np.concatenate([files[name] for name in _SPLITS if name in files])


def _files_of_events(dataset: Dataset, prepare: PrepareConfig) -> dict[str, Numbers]:
    """Return the number of the input file of every event, by split, from the settings of `prepare`.

    Raises:
        DataError: The dataset was prepared with other settings.
    """
    inputs, shares = dataset.manifest.inputs, prepare.shares
    names = list(dataset.splits)
    if all(source.split for source in inputs):
        split_indices = [np.full(source.events, names.index(source.split)) for source in inputs]
    else:
        sources = [InputSource(source.name, source.bytes, source.sha256) for source in inputs]
        if prepare.split_by == "file":
            file_splits = split_of_files(sources, [source.events for source in inputs], shares, prepare.seed)
            split_indices = [np.full(source.events, split) for source, split in zip(inputs, file_splits, strict=True)]
        else:
            pairs = zip(sources, inputs, strict=True)
            split_indices = [split_of(s, 0, i.events, shares, prepare.seed) for s, i in pairs]
    files = {
        name: np.concatenate([np.full(int((rows == n).sum()), file) for file, rows in enumerate(split_indices)])
        for n, name in enumerate(names)
    }
    if prepare.split_by not in (None, "event", "file") or any(len(files[n]) != dataset.splits[n] for n in names):
        raise DataError(
            f"{dataset.path}: folds by file need the section `prepare` with which the dataset was prepared "
            "(split, split_by, seed)"
        )
    return files


def _item_sets(dataset: Dataset) -> set[str]:
    return set(dataset.manifest.item_sets.values())


def _shard(path: Path, table: Table) -> Shard:
    with atomic_path(path) as temporary:
        table.save(temporary)
    return Shard(file=f"../{path.name}", events=len(table), bytes=path.stat().st_size, sha256=sha256(path))


@dataclass(frozen=True)
class _FoldWriter:
    """Writes the manifests of folds."""

    dataset: Dataset
    shards: Sequence[Shard]
    lengths: Sequence[Mapping[str, NDArray[np.int64]]]
    """Items per event, by fold and item set."""
    config: FoldsConfig

    def write(self, folder: Path, number: int) -> None:
        """Write one fold: one shard for validation, the others for training, and the other splits of the dataset."""
        train_folds = [n for n in range(self.config.count) if n != number]
        manifest, original = self.dataset.manifest, self.dataset.path.absolute()
        other_splits = {name: shards for name, shards in manifest.splits.items() if name not in _SPLITS}
        splits = {
            "train": tuple(self.shards[n] for n in train_folds),
            "val": (self.shards[number],),
            **{
                name: tuple(shard.model_copy(update={"file": str(original / shard.file)}) for shard in shards)
                for name, shards in other_splits.items()
            },
        }
        self._write_lengths(folder / LENGTHS, {"train": train_folds, "val": [number]}, list(other_splits))
        path = folder / LENGTHS
        events = sum(shard.events for shards in splits.values() for shard in shards)
        lengths = Shard(file=LENGTHS, events=events, bytes=path.stat().st_size, sha256=sha256(path))
        key = hashlib.sha256(f"{manifest.key} {self.config.model_dump_json()} {number}".encode()).hexdigest()
        manifest.model_copy(update={"key": key, "splits": splits, "lengths": lengths}).save(folder)

    def _write_lengths(self, path: Path, folds: Mapping[str, list[int]], other_splits: Sequence[str]) -> None:
        with atomic_path(path) as temporary, h5py.File(temporary, "w") as file:
            for split, members in folds.items():
                group = file.create_group(split)
                for name in _item_sets(self.dataset):
                    group.create_dataset(name, data=np.concatenate([self.lengths[n][name] for n in members]))
            with contextlib.suppress(OSError), h5py.File(self.dataset.path.absolute() / LENGTHS, "r") as original:
                for split in other_splits:
                    original.copy(split, file)
