"""A LightningDataModule as the source of data: its samples become tables, which clew prepares like any other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from clew.data.table import WEIGHT, Table
from clew.errors import ConfigError, DataError
from clew.models.columns import FEATURES, LABELS
from clew.models.lightning.refusals import lightning_classes
from clew.recipe import load_code

_PLAIN_SAMPLERS = ("SequentialSampler", "RandomSampler", "_InfiniteConstantSampler")


def is_data_module(thing: Any) -> bool:
    """Return whether this is a LightningDataModule, or a class of them."""
    classes = lightning_classes("LightningDataModule")
    return issubclass(thing, classes) if isinstance(thing, type) else isinstance(thing, classes)


def find_data_module(data: Any) -> Any:
    """Return the data module that `data` is, or that `file.py:Name` names; None if it is other data.

    Raises:
        ConfigError: The code is no data module, or needs arguments.
    """
    name = data[0] if isinstance(data, list) and len(data) == 1 else data
    location = name if isinstance(name, str) and ".py:" in name else ""
    module = load_code(location) if location else data
    if not is_data_module(module):
        if location:
            raise ConfigError(f"{location} is no LightningDataModule; name files, or a class of data modules")
        return None
    if not isinstance(module, type):
        return module
    try:
        return module()
    except TypeError as error:
        raise ConfigError(f"{location or module.__name__} cannot be made without arguments: {error}") from error


def data_tables(source: Any) -> tuple[Table, Table | None, dict[str, Any]]:
    """Return the samples of a data module, or of a module that has data loaders.

    Args:
        source: A LightningDataModule or a LightningModule.

    Returns:
        The training samples; the validation samples or None; and settings: the batch size, and `batch` for samples that
        are dictionaries.

    Raises:
        ConfigError: A data loader does something that clew cannot do.
        DataError: Samples have no form that clew knows.
    """
    source.prepare_data()
    if is_data_module(source):
        source.setup("fit")
    name = type(source).__name__
    train = source.train_dataloader()
    table, kind = _read_loader(train, f"{name}.train_dataloader()")
    val, base = None, lightning_classes("LightningDataModule") + lightning_classes("LightningModule")
    if all(type(source).val_dataloader is not getattr(each, "val_dataloader", None) for each in base):
        val = _read_loader(source.val_dataloader(), f"{name}.val_dataloader()")[0]
    settings: dict[str, Any] = {} if kind == "tuple" else {"batch": kind}
    if getattr(train, "batch_size", None):
        settings["batch_size"] = train.batch_size
    return table, val, settings


def _read_loader(loader: Any, place: str) -> tuple[Table, str]:
    """Return the samples of a data loader, and whether they are tuples or dictionaries."""
    from torch.utils.data import DataLoader, default_collate

    if isinstance(loader, (list, tuple)) and len(loader) == 1:
        loader = loader[0]
    if not isinstance(loader, DataLoader):
        raise ConfigError(f"{place} returned a {type(loader).__name__}; clew needs one torch DataLoader")
    if loader.collate_fn is not default_collate:
        name = getattr(loader.collate_fn, "__name__", type(loader.collate_fn).__name__)
        raise ConfigError(f"{place} has collate_fn={name}; clew makes batches itself: do this in the dataset")
    sampler = type(loader.sampler).__name__
    if sampler not in _PLAIN_SAMPLERS:
        raise ConfigError(f"{place} has a {sampler}; clew chooses the order itself: use event weights")
    return _to_table(loader.dataset, place)


def _to_table(dataset: Any, place: str) -> tuple[Table, str]:
    tensors = getattr(dataset, "tensors", None)
    if type(dataset).__name__ == "TensorDataset" and tensors is not None:
        return _columns([np.asarray(tensor) for tensor in tensors], place), "tuple"
    samples = list(_samples(dataset))
    if not samples:
        raise DataError(f"{place} has no samples")
    if isinstance(samples[0], Mapping):
        return Table({str(name): _stack([each[name] for each in samples], place) for name in samples[0]}), "dict"
    if not isinstance(samples[0], Sequence):
        raise DataError(f"{place} gives a {type(samples[0]).__name__} per sample; clew needs (features, labels)")
    return _columns([_stack(column, place) for column in zip(*samples, strict=True)], place), "tuple"


def _samples(dataset: Any) -> Iterable[Any]:
    if hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__"):
        return (dataset[number] for number in range(len(dataset)))
    samples: Iterable[Any] = dataset
    return samples


def _columns(arrays: Sequence[Any], place: str) -> Table:
    if len(arrays) not in (2, 3):
        hint = "clew needs (features, labels), or (features, labels, weights)"
        raise DataError(f"{place} gives {len(arrays)} items per sample; {hint}; other samples may be dictionaries")
    return Table(dict(zip((FEATURES, LABELS, WEIGHT), arrays, strict=False)))


def _stack(values: Sequence[Any], place: str) -> Any:
    arrays = [np.asarray(value) for value in values]
    if len({array.shape for array in arrays}) > 1:
        raise DataError(f"{place} gives samples of different shapes; write them to a file with a ragged column")
    return np.stack(arrays)
