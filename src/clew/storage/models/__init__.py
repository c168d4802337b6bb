"""Models of runs in a store: kept with what is known of them, found again by it, brought to another machine.

A kept model is a folder (in Rucio a dataset) that is a run's folder too, in part: settings, environment, the dataset's
manifest and the weights, so that `clew evaluate` and `clew predict` take it. `clew.json` in it says what is known.
"""

from clew.storage.models.config import PARTS, StoreConfig
from clew.storage.models.model_card import SIDECAR
from clew.storage.models.registry import StoredModel, fetch_model, find_models, open_run, store_model

__all__ = ["PARTS", "SIDECAR", "StoreConfig", "StoredModel", "fetch_model", "find_models", "open_run", "store_model"]
