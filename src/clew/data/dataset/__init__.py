"""Prepared datasets: an immutable folder of HDF5 shards with a manifest, and the batches that are made from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clew.data.dataset.manifest import Dataset, Manifest

if TYPE_CHECKING:
    from clew.data.dataset.batch import Batch

__all__ = ["Batch", "Dataset", "Manifest"]


def __getattr__(name: str) -> Any:
    """Import `Batch` when it is used: it loads torch, which `clew prepare` must not do."""
    if name == "Batch":
        from clew.data.dataset.batch import Batch

        return Batch
    raise AttributeError(name)
