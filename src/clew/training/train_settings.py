"""The keyword arguments of `clew.train`, as a type."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypedDict, TypeVar

from clew.core.config import Section, to_data

F = TypeVar("F", bound=Callable[..., Any])
_Section: TypeAlias = Section | Mapping[str, Any]


class ModelSettings(TypedDict, total=False):
    """Arguments for a plain model and plain data: see `clew.models.columns.ColumnsConfig`."""

    features: str | Sequence[str] | None
    labels: str | Sequence[str] | None
    weight: str | None
    select: str | None
    scale: str | None
    line: str | None
    """What a line of a text file is: "auto", "event" or "item"."""
    loss: Any
    """A name, or a function of outputs and labels."""
    arguments: Mapping[str, Any]
    """Arguments of the function that makes the model, or parameters of the estimator."""
    outputs: Any
    estimator: str | None
    """Instead of a model: "xgboost", "lightgbm", "module:Class" or "file.py:name" of a scikit-learn estimator."""
    negative_weights: Any
    penalties: Any
    batch: Literal["tuple", "dict"]
    """What the steps of a LightningModule get: see `clew.models.columns.ModelSource`."""


class TrainSettings(ModelSettings, total=False):
    """Settings of a training. Each one replaces the value in `config`; None leaves it as it is.

    All names except `lr` are those of `clew.training.config.TrainConfig`, which describes them.
    """

    epochs: int | None
    """Number of passes over the training data."""
    batch_size: int | Literal["auto", "largest"] | None
    """Samples per step, over all workers together; "auto" measures the fastest size."""
    lr: float | None
    """Learning rate of the optimiser (`optimizer.lr`)."""
    workers: int | None
    """Number of training processes. Under torchrun, mpiexec or srun their number is used."""
    strategy: str | None
    """How workers combine their updates: allreduce, sharded, pipeline, downpour, easgd, gem, diloco or backup."""
    device: str | None
    """Where to compute: "cpu", "cuda", "cuda:1", "mps". Default: the accelerator of this machine, or the CPU."""
    precision: Literal["float32", "bf16", "fp16"] | None
    """Number format of the forward pass."""
    seed: int | None
    """Seed of the initial weights and of the order of the samples."""
    start_from: Any
    """Weights to start from: a run, a model in a store, or a file of weights."""
    freeze: Sequence[str]
    """Patterns of the names of parameters that are not trained."""
    steps: int | None
    minutes: float | None
    accumulate: int
    replicas: int | None
    asynchronous: _Section
    buffers: Literal["average", "synchronize"]
    compress: Literal["none", "bf16", "fp16"]
    microbatches: int
    split_points: Sequence[str]
    optimizer: _Section
    schedule: _Section
    clip: float | None
    ema: float | None
    compile: bool
    record: bool | Literal["allreduce"]
    deterministic: bool
    loading: _Section
    order: int | None
    best: _Section
    early_stopping: _Section | None
    target: _Section | None
    threads: int | None
    validation: Literal["shared", "background", "thread"]
    metric_workers: int | None
    trace: bool
    monitor_seconds: float | None
    writers: Sequence[str]
    checkpoint_minutes: float
    keep_checkpoints: int
    time_limit_minutes: float | None
    store: _Section | None
    log_every: int | None


COMMON = ("epochs", "batch_size", "lr", "workers", "strategy", "device", "precision", "seed")
"""Settings for which None means: as in `config`."""


def named_settings(function: F) -> F:
    """Show the settings of `COMMON` as parameters of a function that takes them as `**settings`: `help` lists them."""
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    kinds = {name: kind.__forward_arg__ for name, kind in TrainSettings.__annotations__.items()}
    named = [inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kinds[n]) for n in COMMON]
    function.__signature__ = signature.replace(parameters=[*parameters[:-1], *named, parameters[-1]])  # type: ignore[attr-defined]
    return function


def with_optimizer(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings without values that are None by default, and with `lr` as part of `optimizer`."""
    chosen = {name: value for name, value in settings.items() if value is not None or name not in COMMON}
    lr = chosen.pop("lr", None)
    if lr is not None:
        optimizer = chosen.get("optimizer", {})
        chosen["optimizer"] = {**(to_data(optimizer) if isinstance(optimizer, Section) else optimizer), "lr": lr}
    return chosen
