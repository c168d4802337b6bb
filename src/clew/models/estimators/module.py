"""An estimator as a torch module. Evaluation, checkpoints and exports know modules only."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from clew.data.dataset.batch import Batch, RaggedTensor
from clew.errors import ClewError, DataError, RunError
from clew.models.estimators.boosters import library_error
from clew.models.estimators.library import EstimatorData, classes_of
from clew.models.estimators.lookup import is_classifier, library_of

CONTENT = "estimator"
"""Name of the buffer that holds the fitted estimator as bytes."""


class EstimatorModule(nn.Module):
    """An estimator. Its outputs are probabilities (events, classes), or values (events, labels).

    Args:
        estimator: A new estimator.
        column: The column of a batch that holds the features.
    """

    def __init__(self, estimator: Any, column: str) -> None:
        super().__init__()
        self.source, self.library, self.column = estimator, library_of(estimator), column
        self.fitted: Any = None
        """The fitted model; None before `fit` and before a checkpoint is loaded."""
        self.classifier = is_classifier(estimator)
        self.register_buffer(CONTENT, torch.zeros(0, dtype=torch.uint8))

    @property
    def origin(self) -> str:
        """Name of the class of the estimator."""
        return type(self.source).__name__

    def fit(self, data: EstimatorData) -> None:
        """Fit the estimator.

        Raises:
            RecipeError, ConfigError: The estimator does not accept the data or its parameters.
        """
        if self.classifier:
            classes_of(data.labels)
        try:
            self.fitted = self.library.fit(self.source, data)
        except ClewError:
            raise
        except Exception as error:  # each library has its own kinds of error
            raise library_error(self.origin, error) from error
        content = np.frombuffer(self.library.save(self.fitted), dtype=np.uint8)
        self._buffers[CONTENT] = torch.from_numpy(content.copy())

    def forward(self, inputs: Tensor | Batch, mask: Tensor | None = None) -> Tensor:
        column = inputs.columns[self.column] if isinstance(inputs, Batch) else inputs
        if mask is not None or isinstance(column, RaggedTensor) or column.ndim != 2:
            raise DataError(f"{self.origin} needs one row of numbers per event; '{self.column}' is ragged or an image")
        return torch.from_numpy(self.predict(column.detach().cpu().numpy())).to(column.device)

    def predict(self, features: NDArray[Any]) -> NDArray[np.float32]:
        """Return the outputs for features of shape (events, features)."""
        if self.fitted is None:
            raise RunError(f"{self.origin} is not fitted")
        values = np.asarray(self.library.predict(self.fitted, features), dtype=np.float32)
        return values[:, None] if values.ndim == 1 else values

    def load_fitted(self, state: dict[str, Any], path: Any) -> None:
        """Load the fitted estimator of a checkpoint.

        Args:
            state: The tensors of the checkpoint.
            path: Its file, for messages.

        Raises:
            RunError: It is the checkpoint of another model.
        """
        content = state.get(CONTENT)
        if set(state) != {CONTENT} or not isinstance(content, Tensor) or content.dtype != torch.uint8:
            raise RunError(f"{path}: weights of another model: it holds no estimator")
        try:
            self.fitted = self.library.load(self.source, content.numpy().tobytes())
        except ClewError:
            raise
        except Exception as error:  # each library has its own kinds of error
            raise RunError(f"{path}: not a fitted {self.origin} ({type(error).__name__})") from error
        self._buffers[CONTENT] = content
