"""xgboost and lightgbm. Their own file formats hold the trees, so that reading a model executes no code."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clew.errors import ConfigError, RecipeError
from clew.models.estimators.library import EstimatorData, Library

_LOSSES = ("logloss", "mlogloss", "binary_logloss", "multi_logloss", "l2")
"""Names of metrics that are the loss of clew: a cross-entropy, or the mean squared error."""


def _as_loss(name: str, value: float) -> tuple[str, float]:
    """Return a metric of a library under clew's name, if clew has it."""
    if name == "rmse":
        return "loss", value**2
    return ("loss" if name in _LOSSES else name), value


class XGBoost(Library):
    """Estimators of xgboost. A fitted model is an estimator with the best number of rounds."""

    rounds_parameter = "n_estimators"
    stops_early = True

    def fit(self, estimator: Any, data: EstimatorData) -> Any:
        import xgboost

        class Rounds(xgboost.callback.TrainingCallback):  # type: ignore[misc, unused-ignore]
            def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
                losses = [
                    dict(_as_loss(name, float(values[-1])) for name, values in evals_log[split].items())
                    for split in ("validation_0", "validation_1")
                ]
                data.on_round(epoch + 1, *losses)
                return False

        callbacks = [*(estimator.get_params()["callbacks"] or ()), Rounds()]
        if data.patience is not None:
            stop = xgboost.callback.EarlyStopping
            callbacks.append(
                stop(rounds=data.patience, min_delta=data.min_delta, data_name="validation_1", save_best=True)
            )
        estimator.set_params(callbacks=callbacks)
        with warnings.catch_warnings(record=True) as messages:
            warnings.simplefilter("always")
            estimator.fit(
                data.features,
                data.labels,
                sample_weight=data.weights,
                eval_set=[(data.features, data.labels), (data.val_features, data.val_labels)],
                sample_weight_eval_set=None if data.weights is None else [data.weights, data.val_weights],
                verbose=False,
            )
        unused = next((str(message.message) for message in messages if "are not used" in str(message.message)), "")
        if unused:
            names = unused.partition("{")[2].partition("}")[0].replace('"', "").strip()
            raise ConfigError(f"xgboost has no parameter {names}; see model.arguments")
        return estimator

    def predict(self, fitted: Any, features: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(fitted.predict_proba(features) if _is_classifier(fitted) else fitted.predict(features))

    def save(self, fitted: Any) -> bytes:
        return bytes(fitted.get_booster().save_raw("ubj"))

    def load(self, estimator: Any, content: bytes) -> Any:
        estimator.load_model(bytearray(content))
        return estimator

    def importances(self, fitted: Any) -> tuple[str, NDArray[Any]] | None:
        if fitted.get_params().get("booster") == "gblinear":
            return "weight", np.abs(np.atleast_2d(fitted.coef_)).mean(0)
        return fitted.get_params().get("importance_type") or "gain", np.asarray(fitted.feature_importances_)

    def to_onnx(self, fitted: Any, features: int) -> Any:
        tools, types = onnx_tools("onnxmltools")
        return tools.convert_xgboost(fitted, initial_types=[("features", types.FloatTensorType([None, features]))])


class LightGBM(Library):
    """Estimators of lightgbm. A fitted model is a `lightgbm.Booster` with the best number of rounds."""

    rounds_parameter = "n_estimators"
    stops_early = True

    def parameters(self, estimator: Any, *, seed: int, threads: int) -> dict[str, Any]:
        parameters = estimator.get_params()
        quiet = {} if {"verbose", "verbosity"} & parameters.keys() else {"verbosity": -1}
        return {**super().parameters(estimator, seed=seed, threads=threads), **quiet}

    def fit(self, estimator: Any, data: EstimatorData) -> Any:
        import lightgbm

        def record(env: Any) -> None:
            losses: dict[str, dict[str, float]] = {}
            for split, name, value, *_ in env.evaluation_result_list:
                losses.setdefault(split, {}).update([_as_loss(name, float(value))])
            data.on_round(env.iteration + 1, losses["training"], losses["valid_1"])

        callbacks = [record]
        if data.patience is not None:
            callbacks.append(lightgbm.early_stopping(data.patience, min_delta=data.min_delta, verbose=False))
        with warnings.catch_warnings():
            # eval_X and eval_y, its successors, do not recognise the training split
            warnings.filterwarnings("ignore", "The argument 'eval_set' is deprecated")
            estimator.fit(
                data.features,
                data.labels,
                sample_weight=data.weights,
                eval_set=[(data.features, data.labels), (data.val_features, data.val_labels)],
                eval_sample_weight=None if data.weights is None else [data.weights, data.val_weights],
                callbacks=callbacks,
            )
        return lightgbm.Booster(model_str=self.save(estimator.booster_).decode())

    def predict(self, fitted: Any, features: NDArray[Any]) -> NDArray[Any]:
        values = np.asarray(fitted.predict(features))
        return np.stack([1 - values, values], axis=1) if _is_binary(fitted) else values

    def save(self, fitted: Any) -> bytes:
        best = fitted.best_iteration if fitted.best_iteration > 0 else None
        text: str = fitted.model_to_string(num_iteration=best)
        return text.encode()

    def load(self, estimator: Any, content: bytes) -> Any:
        import lightgbm

        return lightgbm.Booster(model_str=content.decode())

    def importances(self, fitted: Any) -> tuple[str, NDArray[Any]] | None:
        gains = np.asarray(fitted.feature_importance("gain"), dtype=np.float64)
        return "gain", gains / max(gains.sum(), 1e-300)

    def to_onnx(self, fitted: Any, features: int) -> Any:
        tools, types = onnx_tools("onnxmltools")
        inputs = [("features", types.FloatTensorType([None, features]))]
        return tools.convert_lightgbm(fitted, initial_types=inputs, zipmap=False)


def _is_classifier(estimator: Any) -> bool:
    return hasattr(estimator, "predict_proba")


def _is_binary(booster: Any) -> bool:
    """Whether a booster of lightgbm has two classes: its file names the objective."""
    text = booster.model_to_string(num_iteration=1)
    objective = next((line for line in text.splitlines() if line.startswith("objective=")), "")
    return objective.removeprefix("objective=").startswith(("binary", "cross_entropy"))


def onnx_tools(name: str) -> tuple[Any, Any]:
    """Return a package that converts estimators to ONNX, and its module of types.

    Raises:
        ConfigError: It is not installed.
    """
    module = {"onnxmltools": "onnxmltools.convert", "skl2onnx": "skl2onnx"}[name]
    try:
        return importlib.import_module(module), importlib.import_module(f"{module}.common.data_types")
    except ImportError as error:
        raise ConfigError(f"exports of estimators need the extra trees (pip install 'clew[trees]'): {error}") from error


def library_error(origin: str, error: Exception) -> RecipeError:
    """Return the error to raise if a library refuses its data or its parameters."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = next((line.partition("] ")[2] if line.startswith("[") else line for line in lines), type(error).__name__)
    return RecipeError(f"{origin}: {text}")
