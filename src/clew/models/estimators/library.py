"""The contract of a package of estimators: fit, predict, save, export."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from clew.errors import RecipeError

RoundCallback = Callable[[int, dict[str, float], dict[str, float]], None]
"""Called after a boosting round with the number of rounds done, the training losses and the validation losses."""


@dataclass(frozen=True)
class EstimatorData:
    """Two splits in memory, and how to fit."""

    features: NDArray[Any]
    """Shape (events, features)."""
    labels: NDArray[Any]
    weights: NDArray[Any] | None
    """Event weights; None if there are none."""
    val_features: NDArray[Any]
    val_labels: NDArray[Any]
    val_weights: NDArray[Any] | None
    patience: int | None
    """Rounds without an improvement of the validation loss after which boosting ends; None: all rounds."""
    min_delta: float
    """Smallest change of the loss that counts as an improvement."""
    on_round: RoundCallback


class Library(ABC):
    """Fits, saves and exports estimators of one package. What `fit` returns is the fitted model."""

    threads: ClassVar[str] = "n_jobs"
    """Name of the parameter that limits the number of threads."""
    rounds_parameter: ClassVar[str] = ""
    """Name of the parameter with the number of boosting rounds; empty if there are no rounds."""
    stops_early: ClassVar[bool] = False
    """Whether boosting can end when the loss of the validation split no longer improves."""
    negative_weights: ClassVar[bool] = False
    """Whether event weights may be negative."""

    def rounds(self, estimator: Any) -> int:
        """Return the number of boosting rounds; 1 for an estimator without rounds."""
        value = estimator.get_params().get(self.rounds_parameter) if self.rounds_parameter else 1
        return 100 if value is None else int(value)  # 100 is the default of all of them

    def parameters(self, estimator: Any, *, seed: int, threads: int) -> dict[str, Any]:
        """Return the values of parameters that the user left open: seed and threads."""
        values, known = {"random_state": seed, self.threads: threads}, estimator.get_params()
        return {name: value for name, value in values.items() if name in known and known[name] is None}

    @abstractmethod
    def fit(self, estimator: Any, data: EstimatorData) -> Any:
        """Fit an estimator and return the fitted model."""

    @abstractmethod
    def predict(self, fitted: Any, features: NDArray[Any]) -> NDArray[Any]:
        """Return probabilities of classes, shape (events, classes), or values, shape (events,) or (events, labels)."""

    @abstractmethod
    def save(self, fitted: Any) -> bytes:
        """Return the fitted model as bytes."""

    @abstractmethod
    def load(self, estimator: Any, content: bytes) -> Any:
        """Return the fitted model from bytes. No code that they contain is executed.

        Args:
            estimator: A new estimator of the same kind.
            content: What `save` returned.
        """

    @abstractmethod
    def importances(self, fitted: Any) -> tuple[str, NDArray[Any]] | None:
        """Return what the estimator says about its features: the name of the measure and one number per feature."""

    @abstractmethod
    def to_onnx(self, fitted: Any, features: int) -> Any:
        """Return an ONNX model of float32 features. Its last output is what `predict` returns."""


def classes_of(labels: NDArray[Any]) -> int:
    """Return the number of classes of integer labels.

    Raises:
        RecipeError: The classes are not 0, 1, 2, ...
    """
    classes = np.unique(labels)
    if not np.array_equal(classes, np.arange(len(classes))):
        numbers = ", ".join(map(str, classes[:5].tolist()))
        raise RecipeError(f"the labels of the training split are {numbers}; an estimator needs classes 0, 1, 2, ...")
    return len(classes)
