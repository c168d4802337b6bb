"""Trained models in a store: written with their facts, found by them, and fetched to another machine.

A stored model is a folder (in Rucio a dataset) with a part of a run folder: settings, environment, the manifest of the
dataset and the weights. `clew evaluate` and `clew predict` accept it. Its facts are in the file `clew.json`.
"""

from clew.storage.models.config import PARTS, StoreConfig
from clew.storage.models.model_card import SIDECAR
from clew.storage.models.registry import StoredModel, fetch_model, find_models, open_run, store_model

__all__ = ["PARTS", "SIDECAR", "StoreConfig", "StoredModel", "fetch_model", "find_models", "open_run", "store_model"]
