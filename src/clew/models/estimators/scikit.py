"""Estimators of scikit-learn, and classes of other packages that follow it.

skops writes their attributes and reads them back without executing code: only classes that scikit-learn itself defines
are made. (Pickles, the usual format, execute what they contain.)
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clew.errors import ConfigError, RecipeError, RunError
from clew.models.estimators.boosters import onnx_tools
from clew.models.estimators.histogram_onnx import histogram_to_onnx
from clew.models.estimators.library import EstimatorData, Library


class ScikitLearn(Library):
    """Any estimator of scikit-learn. A fitted model is the estimator."""

    negative_weights = True

    def fit(self, estimator: Any, data: EstimatorData) -> Any:
        weights = {} if data.weights is None else {_weight_argument(estimator): data.weights}
        return estimator.fit(data.features, data.labels, **weights)

    def predict(self, fitted: Any, features: NDArray[Any]) -> NDArray[Any]:
        classifier = hasattr(fitted, "predict_proba")
        return np.asarray(fitted.predict_proba(features) if classifier else fitted.predict(features))

    def save(self, fitted: Any) -> bytes:
        content: bytes = _skops().dumps(vars(fitted))
        foreign = _foreign_types(content)
        if foreign:
            raise RecipeError(f"{type(fitted).__name__} holds {foreign[0]}, which is not of scikit-learn: not saved")
        return content

    def load(self, estimator: Any, content: bytes) -> Any:
        foreign = _foreign_types(content)
        if foreign:
            raise RunError(f"the estimator of this run holds {foreign[0]}, which is not of scikit-learn; it is refused")
        attributes = _skops().loads(content, trusted=_skops().get_untrusted_types(data=content))
        vars(estimator).update(attributes)
        return estimator

    def importances(self, fitted: Any) -> tuple[str, NDArray[Any]] | None:
        last = fitted.steps[-1][1] if hasattr(fitted, "steps") else fitted
        if hasattr(last, "feature_importances_"):
            return "impurity", np.asarray(last.feature_importances_)
        if hasattr(last, "coef_"):
            return "coefficient (absolute)", np.abs(np.atleast_2d(last.coef_)).mean(0)
        return None

    def to_onnx(self, fitted: Any, features: int) -> Any:
        tools, types = onnx_tools("skl2onnx")
        options = {id(fitted): {"zipmap": False}} if hasattr(fitted, "predict_proba") else None
        inputs = [("features", types.FloatTensorType([None, features]))]
        return tools.convert_sklearn(fitted, initial_types=inputs, options=options)


class HistGradientBoosting(ScikitLearn):
    """HistGradientBoostingClassifier and HistGradientBoostingRegressor."""

    rounds_parameter = "max_iter"
    stops_early = True

    def fit(self, estimator: Any, data: EstimatorData) -> Any:
        if data.patience is None:
            if estimator.early_stopping == "auto":  # it would hold out a part of the training split
                estimator.set_params(early_stopping=False)
            return super().fit(estimator, data)
        stop = {"early_stopping": True, "n_iter_no_change": data.patience, "tol": data.min_delta}
        estimator.set_params(**stop)
        estimator.fit(
            data.features,
            data.labels,
            sample_weight=data.weights,
            X_val=data.val_features,
            y_val=data.val_labels,
            sample_weight_val=data.val_weights,
        )
        self._record_losses(estimator, data)
        return estimator

    def _record_losses(self, estimator: Any, data: EstimatorData) -> None:
        """Report the losses of all rounds. Half the squared error is the loss of scikit-learn's regressions."""
        if estimator.scoring != "loss":
            return
        factor = 1.0 if hasattr(estimator, "predict_proba") else 2.0
        scores = zip(estimator.train_score_[1:], estimator.validation_score_[1:], strict=True)
        for number, (train, val) in enumerate(scores):
            data.on_round(number + 1, {"loss": -factor * float(train)}, {"loss": -factor * float(val)})

    def importances(self, fitted: Any) -> tuple[str, NDArray[Any]] | None:
        """Return the gain of the splits, which scikit-learn does not offer itself."""
        gains = np.zeros(fitted.n_features_in_)
        for trees in fitted._predictors:
            for tree in trees:
                inner = tree.nodes[tree.nodes["is_leaf"] == 0]
                np.add.at(gains, inner["feature_idx"], inner["gain"])
        return "gain", gains / max(gains.sum(), 1e-300)

    def to_onnx(self, fitted: Any, features: int) -> Any:
        onnx_tools("skl2onnx")
        return histogram_to_onnx(fitted, features)


def _weight_argument(estimator: Any) -> str:
    """Return the name of the argument of `fit` that takes event weights; of a pipeline, those of its last step.

    Raises:
        ConfigError: There is none.
    """
    steps = getattr(estimator, "steps", None)
    last, prefix = (steps[-1][1], f"{steps[-1][0]}__") if steps else (estimator, "")
    if "sample_weight" not in inspect.signature(last.fit).parameters:
        raise ConfigError(f"{type(last).__name__} takes no event weights; leave out --weight, or choose another")
    return f"{prefix}sample_weight"


def _skops() -> Any:
    try:
        return importlib.import_module("skops.io")
    except ImportError as error:
        raise ConfigError(
            f"scikit-learn estimators need the extra trees (pip install 'clew[trees]'): {error}"
        ) from error


def _foreign_types(content: bytes) -> list[str]:
    """Return the types in a file that neither skops knows nor scikit-learn defines."""
    return [name for name in _skops().get_untrusted_types(data=content) if not _is_sklearn_class(name)]


def _is_sklearn_class(name: str) -> bool:
    module, _, kind = name.rpartition(".")
    if module.partition(".")[0] != "sklearn":
        return False
    try:
        member = getattr(importlib.import_module(module), kind, None)
    except ImportError:
        return False
    return isinstance(member, type) and member.__module__.partition(".")[0] in ("sklearn", "_loss")
