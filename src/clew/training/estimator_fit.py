"""Trains an estimator (boosted trees, scikit-learn) on a dataset in memory, and records it like a network.

One process fits it, with threads. A boosting round counts as an epoch: records hold its training and validation loss.
The fitted estimator is the checkpoint `best` and `last`. A run that was stopped or killed is resumed from its first
round: the same seed and the same samples give the result of a run that was never stopped.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from clew.core.background import run_repeatedly
from clew.core.config import to_data
from clew.data.dataset import Dataset
from clew.data.dataset.sample_store import MemorySamples
from clew.data.dataset.sampler import Sampler
from clew.data.table import WEIGHT, Ragged, Table
from clew.errors import ConfigError, DataError, LeaseError, list_names
from clew.jobs.rank_info import RankInfo
from clew.metrics import metric_values
from clew.models.estimators import EstimatorData, EstimatorModule, library_of
from clew.recipe import Recipe
from clew.recipe_errors import recipe_errors
from clew.runs import Run
from clew.runs.environment import allowed_cores
from clew.training import checkpoint, validation
from clew.training.config import TrainConfig
from clew.training.early_stopping import ValidationTracker
from clew.training.rank_session import RankSession, open_session, system_monitor
from clew.training.schedule import Schedule
from clew.training.training_start import TrainingStart

BATCH = 65_536
"""Samples per call of an estimator: a call takes about a millisecond, whatever the number of samples."""
_LEASE_SECONDS = 2.0
_MAX_RECORDS = 200
"""Largest number of rounds that are recorded."""
_USED = (
    "dataset",
    "workers",
    "strategy",
    "device",
    "seed",
    "best",
    "early_stopping",
    "threads",
    "trace",
    "monitor_seconds",
    "writers",
    "store",
    "time_limit_minutes",
)
"""Settings of `train` that estimators use, or that do not change their result."""


def estimator_settings(recipe: Recipe, config: TrainConfig) -> TrainConfig:
    """Check the settings of an estimator's training. Return them with its number of rounds as epochs.

    Args:
        recipe: The recipe of an estimator.
        config: The settings.

    Raises:
        ConfigError: A setting has no meaning for the estimator.
    """
    with recipe_errors():
        estimator = recipe.estimator()
    name, library = type(estimator).__name__, library_of(estimator)
    if config.processes != 1:
        raise ConfigError(f"{name} is trained in one process; leave out --workers (train.threads sets its threads)")
    defaults = to_data(TrainConfig.model_validate(dict(recipe.defaults.get("train", {}))))
    computed = {"epochs": library.rounds(estimator), "batch_size": BATCH}
    plain = to_data(TrainConfig())
    ignored = [
        f"train.{key}"
        for key, value in to_data(config).items()
        if key not in _USED and value not in (defaults[key], plain[key], computed.get(key, plain[key]))
    ]
    if "train.epochs" in ignored and library.rounds_parameter:
        hint = f"set model.arguments.{library.rounds_parameter}"
        raise ConfigError(f"train.epochs {config.epochs}: {name} has its own number of rounds; {hint}")
    if ignored:
        raise ConfigError(f"{', '.join(ignored)}: for networks only; {name} does not use it")
    stop = config.early_stopping
    if stop is not None and not library.stops_early:
        known = "xgboost, lightgbm and HistGradientBoosting have it"
        raise ConfigError(f"train.early_stopping: {name} has no early stopping on the validation split; {known}")
    if stop is not None and stop.metric not in (None, "loss"):
        raise ConfigError(f"train.early_stopping.metric {stop.metric}: {name} stops by the loss only")
    return config.model_copy(update=computed)


def run_rank(run: Run, start: TrainingStart, place: RankInfo, store: Any = None) -> None:
    """Train an estimator, from the first record to the last.

    Args:
        run: The folder of the run.
        start: The recipe and the settings.
        place: The rank of this process, the only one.
        store: Not used.

    Raises:
        Whatever ends the training early, after it was recorded.
    """
    device = torch.device("cpu")
    with (
        open_session(run, start.config, place, start.lease) as session,
        system_monitor(run, start.config, place, device),
        run_repeatedly(session.stop.renew_lease, every=_LEASE_SECONDS, name="lease"),
    ):
        if start.resume:
            session.writer.write("resume", epoch=0, step=0, samples=0, file="", damaged=[])
        _Fit(run, start.recipe, start.config, session).train()


class _Fit:
    """The training of one estimator."""

    def __init__(self, run: Run, recipe: Recipe, config: TrainConfig, session: RankSession) -> None:
        self.run, self.recipe, self.config = run, recipe, config
        self.session, self.writer = session, session.writer
        began = time.perf_counter()
        dataset = Dataset(config.dataset)
        self.train_samples, self.val_samples = dataset.read("train"), dataset.read("val")
        self.load_seconds = time.perf_counter() - began
        model = validation.build_model(recipe)
        assert isinstance(model, EstimatorModule)
        self.model = model
        threads = config.threads or allowed_cores()
        model.source.set_params(**model.library.parameters(model.source, seed=config.seed, threads=threads))
        self.rounds = 0
        self.mean_weights: tuple[float, ...] = (1.0, 1.0)
        """Mean event weight of both splits: libraries divide a loss by the sum of weights, clew by the number."""
        self.recorded = time.perf_counter()

    def train(self) -> None:
        """Fit, validate and save the estimator."""
        samples = len(self.train_samples)
        facts = {"epochs": self.config.epochs, "steps": self.config.epochs, "samples": samples}
        self.writer.write("plan", **facts, parameters=0, device="cpu")
        self.writer.write("load", seconds=self.load_seconds)
        self.model.fit(self._data())
        self._check_stop()
        if not self.rounds:  # an estimator that reports no rounds is one step
            self.rounds = self.config.epochs
            self._record_step({})
        self._validate()
        stopped = self.rounds < self.config.epochs
        self.session.end_reason = f"stopped early after {self.rounds} rounds" if stopped else ""

    def _data(self) -> EstimatorData:
        train, val = self._arrays(self.train_samples), self._arrays(self.val_samples)
        self.mean_weights = tuple(1.0 if weights is None else float(weights.mean()) for *_, weights in (train, val))
        stop = self.config.early_stopping
        delta = 0.0 if stop is None else stop.min_delta
        return EstimatorData(*train, *val, None if stop is None else stop.patience, delta, self._on_round)

    def _arrays(self, samples: Table) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None]:
        """Features, labels and weights of a split, as the estimator gets them."""
        names = self.recipe.estimator_columns
        for name in names:
            if name not in samples:
                raise DataError(f"an estimator needs the column '{name}'; the samples have {list_names(samples)}")
            if isinstance(samples[name], Ragged):
                raise DataError(f"column '{name}' is ragged; an estimator needs one row of numbers per event")
        features, labels = samples.fixed(names[0]), samples.fixed(names[1])
        if features.ndim != 2:
            raise DataError(f"column '{names[0]}' has shape {features.shape[1:]}; an estimator needs (features,)")
        return features, self._labels(labels), self._weights(samples)

    def _labels(self, labels: NDArray[Any]) -> NDArray[Any]:
        if labels.ndim == 2 and labels.shape[1] == 1:
            labels = labels[:, 0]
        if not self.model.classifier:
            return labels
        if labels.ndim == 2:
            labels = labels.argmax(1)  # one column per class
        if not np.array_equal(labels, labels.astype(np.int64)):
            raise DataError(f"{self.model.origin} predicts classes; the labels are not whole numbers")
        return np.asarray(labels.astype(np.int64))

    def _weights(self, samples: Table) -> NDArray[Any] | None:
        if WEIGHT not in samples:
            return None
        weights = np.asarray(self.recipe.estimator_weights(samples.weights))
        if (weights < 0).any() and not self.model.library.negative_weights:
            raise DataError(f"{self.model.origin} accepts no negative event weights; use absolute or zero")
        return weights

    def _on_round(self, rounds: int, train: Mapping[str, float], val: Mapping[str, float]) -> None:
        """Record a round. Of many rounds, every second, third, ... is recorded."""
        self.session.stop.can_save = True  # from here on the first Ctrl-C stops after a round
        self._check_stop()
        self.rounds = rounds
        if rounds % -(-self.config.epochs // _MAX_RECORDS) and rounds != self.config.epochs:
            return
        losses = [
            {name: value * weight if name == "loss" else value for name, value in split.items()}
            for split, weight in zip((train, val), self.mean_weights, strict=True)
        ]
        self._record_step(losses[0])
        self.writer.write("validation", **self._place(), metrics=losses[1], seconds=0.0, partial=True)

    def _place(self) -> dict[str, int]:
        """The newest round as records and checkpoints name it: epochs are counted from 0."""
        return {"epoch": max(self.rounds - 1, 0), "step": self.rounds}

    def _record_step(self, losses: Mapping[str, float]) -> None:
        now = time.perf_counter()
        samples = self.rounds * len(self.train_samples)
        self.writer.write(
            "step",
            **self._place(),
            samples=samples,
            loss=dict(losses),
            seconds=now - self.recorded,
            wait=0.0,
            communicate=0.0,
            lr=0.0,
        )
        self.recorded = now

    def _check_stop(self) -> None:
        stop = self.session.stop
        if stop.lease_lost:
            raise LeaseError(f"{self.run.path} was assigned to another process")
        if stop.requested:
            raise stop.stopped_error(self.rounds, self.run.path)

    def _validate(self) -> None:
        """Compute all metrics of the validation split, and save the estimator."""
        began, store = time.perf_counter(), MemorySamples(self.val_samples)
        batches = Sampler(len(store), BATCH, 0, 0, 1, shuffle=False).epoch(0)
        metrics = metric_values(
            validation.evaluate_batches(self.recipe, self.model, store, batches, torch.device("cpu"))
        )
        facts = self._place()
        self.writer.write("validation", **facts, metrics=metrics, seconds=time.perf_counter() - began)
        ValidationTracker(self.config, Schedule(self.config, 1, 1)).update(metrics)  # is there such a metric?
        for name in ("last", "best"):
            path = checkpoint.save(self.model.state_dict(), self.run.checkpoint(name), facts=facts)
            self.writer.write("checkpoint", **facts, file=f"checkpoints/{path.name}")
