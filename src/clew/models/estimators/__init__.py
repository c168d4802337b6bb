"""Boosted trees and other estimators with the interface of scikit-learn, as modules that clew evaluates and saves.

`module.EstimatorModule` holds an estimator; `lookup` makes one from a name; a `library.Library` fits, saves and exports
those of one package.
"""

from clew.models.estimators.library import EstimatorData, Library
from clew.models.estimators.lookup import LIBRARIES, check_name, library_of, load_estimator, reference_of
from clew.models.estimators.module import EstimatorModule

__all__ = [
    "LIBRARIES",
    "EstimatorData",
    "EstimatorModule",
    "Library",
    "check_name",
    "library_of",
    "load_estimator",
    "reference_of",
]
