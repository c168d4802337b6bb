"""Estimators by name: `xgboost`, `lightgbm`, or the location of a class or function."""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from collections.abc import Mapping
from typing import Any

from clew.errors import ConfigError, RecipeError
from clew.models.estimators.boosters import LightGBM, XGBoost
from clew.models.estimators.library import Library
from clew.models.estimators.scikit import HistGradientBoosting, ScikitLearn
from clew.models.loading import is_estimator
from clew.recipe import load_code

LIBRARIES = {
    "xgboost": ("xgboost:XGBClassifier", "xgboost:XGBRegressor"),
    "lightgbm": ("lightgbm:LGBMClassifier", "lightgbm:LGBMRegressor"),
}
"""Short names, and the classes that they mean: for classes and for other labels."""
_FORMS = "xgboost, lightgbm, module:Class such as sklearn.ensemble:HistGradientBoostingClassifier, or file.py:name"


def library_of(estimator: Any) -> Library:
    """Return what fits and saves an estimator."""
    modules = {kind.__module__.partition(".")[0] for kind in type(estimator).__mro__}
    if "xgboost" in modules:
        return XGBoost()
    if "lightgbm" in modules:
        return LightGBM()
    names = {kind.__name__ for kind in type(estimator).__mro__}
    return HistGradientBoosting() if "BaseHistGradientBoosting" in names else ScikitLearn()


def load_estimator(name: str, arguments: Mapping[str, Any], *, classes: bool) -> Any:
    """Return a new estimator.

    Args:
        name: One of `LIBRARIES`, `module:Class`, or `file.py:name` of a class or function.
        arguments: Its arguments.
        classes: Whether the labels are classes. Only the short names ask for it.

    Raises:
        ConfigError, RecipeError: There is no such estimator, or it does not accept the arguments.
    """
    check_name(name)
    if name in LIBRARIES:
        name = LIBRARIES[name][0 if classes else 1]
    _check_installed(name)
    make = load_code(name)
    try:
        estimator = make(**arguments) if callable(make) and not is_estimator(make) else make
    except TypeError as error:
        raise ConfigError(f"{name} cannot be called with {dict(arguments)}: {error}") from error
    return check_estimator(estimator, name)


def check_name(name: str) -> None:
    """Check that a name has one of the forms that `load_estimator` accepts.

    Raises:
        ConfigError: It has none of them.
    """
    if name not in LIBRARIES and ":" not in name:
        raise ConfigError(f"no estimator '{name}'; write {_FORMS}")


def _check_installed(name: str) -> None:
    package = name.partition(":")[0].partition(".")[0]
    if package in ("xgboost", "lightgbm", "sklearn"):
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise ConfigError(f"{name} needs the extra trees (pip install 'clew[trees]'): {error}") from error


def check_estimator(estimator: Any, origin: str) -> Any:
    """Return an estimator, if it has what clew needs.

    Raises:
        RecipeError: It is no estimator, or a classifier without probabilities.
    """
    if not is_estimator(estimator):
        raise RecipeError(f"{origin} returned a {type(estimator).__name__}, not an estimator with fit and predict")
    if is_classifier(estimator) and not hasattr(estimator, "predict_proba"):
        hint = "sklearn.calibration:CalibratedClassifierCV adds it"
        raise RecipeError(f"{origin} has no predict_proba, which metrics and exports need; {hint}")
    return estimator


def is_classifier(estimator: Any) -> bool:
    """Whether an estimator predicts classes."""
    from sklearn.base import is_classifier

    return bool(is_classifier(estimator))


def reference_of(estimator: Any) -> tuple[str, dict[str, Any]]:
    """Return the location of the class of an estimator, and the arguments with which it makes the same again.

    Raises:
        ConfigError: It cannot be made again from its class and plain numbers and texts.
    """
    kind = type(estimator)
    defaults, values = _defaults(kind), estimator.get_params(deep=False)
    arguments = {name: value for name, value in values.items() if name not in defaults or value is not defaults[name]}
    importable = kind.__module__ != "__main__" and getattr(sys.modules.get(kind.__module__), kind.__name__, 0) is kind
    try:
        plain = json.loads(json.dumps(arguments, allow_nan=False)) == arguments
    except (TypeError, ValueError):
        plain = False
    if not (importable and plain):
        raise ConfigError(
            f"{kind.__name__}: a run cannot load it again; put a function that returns it into a file, and name it: "
            f'estimator="file.py:name"'
        )
    return f"{kind.__module__}:{kind.__qualname__}", arguments


def _defaults(kind: type) -> dict[str, Any]:
    """Return the parameters of an estimator that was made without arguments, as far as they are known.

    The signature does not name them all: that of xgboost's classifier has `**kwargs`.
    """
    try:
        return dict(kind().get_params(deep=False))
    except TypeError:  # one that needs an argument
        return {name: item.default for name, item in inspect.signature(kind).parameters.items()}
