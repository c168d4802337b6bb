"""Keras models and data for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from clew.models.keras import load_keras, without_array_warnings


def cnn(*, dropout: bool = False, norm: bool = True, last: str | None = "softmax", **last_options: Any) -> Any:
    """Images (8, 8, 1), channels last, to three classes."""
    keras = load_keras()
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(6, 3, activation="relu"),
            *([layers.BatchNormalization(momentum=0.9)] if norm else []),
            layers.MaxPooling2D(),
            *([layers.Dropout(0.2, seed=5)] if dropout else []),
            layers.Flatten(),
            layers.Dense(3, activation=last, **last_options),
        ]
    )


def images(events: int, seed: int = 0) -> tuple[Any, Any]:
    """Bright bands in noise; the place of the band is the class."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, events)
    pixels = 0.8 * rng.normal(size=(events, 8, 8, 1)).astype(np.float32)
    for place in range(3):
        pixels[labels == place, 2 * place : 2 * place + 3, 2:6] += 1
    return pixels, labels


def saved(model: Any, path: Path) -> Path:
    """The model in a file: an architecture alone for .json."""
    with without_array_warnings():
        if path.suffix == ".json":
            path.write_text(model.to_json())
        else:
            model.save(path)
    return path
