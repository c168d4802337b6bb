"""Prepared data: an immutable folder of HDF5 shards and a manifest, and how batches come out of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clew.data.dataset.manifest import Dataset, Manifest

if TYPE_CHECKING:
    from clew.data.dataset.batch import Batch

__all__ = ["Batch", "Dataset", "Manifest"]


def __getattr__(name: str) -> Any:
    """`Batch` holds tensors: it loads torch, which `clew prepare` must never do."""
    if name == "Batch":
        from clew.data.dataset.batch import Batch

        return Batch
    raise AttributeError(name)
