"""`fit` and `evaluate` of a Keras model on several ranks, with records. Keras computes on its torch backend.

Every rank runs the same script and reads the same batches. A rank trains on its share of each batch; the gradients of
all shares are added before the optimiser's step. So the result is that of one process, to rounding.
"""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from clew.errors import ConfigError, RunError
from clew.models.keras import load_keras, use_batch_moments
from clew.training.strategies import Strategy
from clew.training.strategies.batch_norm import global_moments
from clew.training.strategies.process_group import gather_items

_RECORD_INTERVAL = 0.5
"""Seconds between two records during an epoch."""
Record = Callable[[int, int, int, Mapping[str, float]], None]
"""Writes losses and metrics: the epoch, the batches and samples since the last call, the values by name."""


def is_keras_model(item: Any) -> bool:
    """Return whether this is a Keras model, without importing Keras."""
    keras = sys.modules.get("keras")
    return keras is not None and isinstance(item, keras.Model)


def distribute_fit(model: Any, rank: int, ranks: int, record: Record) -> Any:
    """Let `fit` and `evaluate` of a Keras model work on all ranks.

    Args:
        model: The Keras model. It is changed in place.
        rank: Number of this process.
        ranks: Number of processes, which are connected by torch's default process group.
        record: Writes losses and metrics.

    Returns:
        The model.

    Raises:
        ConfigError: Keras is loaded with another backend.
    """
    load_keras()
    DistributedFit(model, Strategy(rank=rank, ranks=ranks), record)
    return model


class DistributedFit:
    """Replaces methods of one model object. Its class, weights and saved files remain those of Keras."""

    def __init__(self, model: Any, strategy: Strategy, record: Record) -> None:
        self.model, self.strategy, self.record = model, strategy, record
        self.samples = 0
        """Samples of all batches of `fit`, over all ranks."""
        self._share = 1.0
        """This rank's part of the current batch; 0 if it has none."""
        self._scaled = self._in_step = False
        self._checked = strategy.ranks == 1
        """Whether all ranks have had the same first batch in this epoch."""
        self._fit, self._metrics_result = model.fit, model.get_metrics_result
        self._steps = {"train": model.train_step, "test": model.test_step}
        self._replace(model, fit=self.fit, train_step=partial(self._step, "train"))
        if strategy.ranks > 1:
            self._replace(model, get_metrics_result=self.metrics_result, test_step=partial(self._step, "test"))
            use_batch_moments(model, partial(global_moments, strategy=strategy))

    @staticmethod
    def _replace(item: Any, **methods: Any) -> None:
        for name, method in methods.items():
            object.__setattr__(item, name, method)  # Keras must not track it

    def fit(self, *args: Any, **settings: Any) -> Any:
        """Train as `keras.Model.fit` does. `batch_size` counts the samples of all ranks."""
        call = inspect.signature(self._fit).bind(*args, **settings)
        callbacks = call.arguments.get("callbacks") or []
        if not isinstance(callbacks, (list, tuple)):
            raise ConfigError("fit of a distributed Keras model needs callbacks as a list")
        call.arguments["callbacks"] = [_make_callback(self), *callbacks]
        if self.strategy.rank:
            call.arguments["verbose"] = 0
        if self.strategy.ranks > 1:
            _check_losses(self.model)
            self._replace_optimizer()
        return self._fit(*call.args, **call.kwargs)

    def _replace_optimizer(self) -> None:
        optimizer = self.model.optimizer
        if optimizer is None or "scale_loss" in vars(optimizer):
            return
        scale_loss, apply = optimizer.scale_loss, optimizer.apply

        def scaled(loss: Tensor) -> Tensor:
            self._scaled = True
            share: Tensor = scale_loss(loss) * self._share
            return share

        def summed(gradients: Any, *variables: Any) -> Any:
            return apply(self._sum_gradients(gradients), *variables)

        self._replace(optimizer, scale_loss=scaled, apply=summed)

    def _sum_gradients(self, gradients: Any) -> list[Tensor | None]:
        """Return the gradients added over all ranks: those of the mean loss of the whole batch."""
        factor = 1.0 if self._scaled else self._share  # a `train_step` of the user may not scale its loss
        parts = [gradient for gradient in gradients if gradient is not None]
        if not parts:
            return list(gradients)
        flat = torch.cat([part.reshape(-1) for part in parts]) * factor
        dist.all_reduce(flat)
        pieces = iter(torch.split(flat, [part.numel() for part in parts]))
        return [None if each is None else next(pieces).view_as(each) for each in gradients]

    def _step(self, kind: str, data: Any) -> Any:
        """Perform the model's own step on this rank's share of a batch."""
        tree = load_keras().tree
        count = next(len(each) for each in tree.flatten(data) if each is not None)
        self.samples += count if kind == "train" else 0
        if not self._checked:
            self._check_same(tree.flatten(data), count)
        rank, ranks = self.strategy.share
        first, stop = count * rank // ranks, count * (rank + 1) // ranks
        empty = first == stop
        self._share, self._scaled = (stop - first) / count, False
        self.strategy.batch_counts = not empty
        part = slice(0, 1) if empty else slice(first, stop)  # an empty share computes, so that ranks stay in step
        local = tree.map_structure(lambda each: None if each is None else each[part], data)
        states = self._metric_values() if empty else None
        self._in_step = True
        try:
            logs = self._steps[kind](local)
        finally:
            self._in_step = False
        if states is not None:
            self._set_metric_values(states)
        return logs

    def _check_same(self, tensors: list[Any], count: int) -> None:
        """Check that all ranks have the same batch, once per epoch."""
        self._checked = True
        total = sum(float(torch.as_tensor(each).double().sum()) for each in tensors if each is not None)
        batches = gather_items((count, total))
        if any(each != batches[0] for each in batches):
            raise RunError("fit gets different batches on the ranks; give every rank the same data in the same order")

    def _metric_variables(self) -> list[Any]:
        return [variable for metric in self.model.metrics for variable in metric.variables]

    def _metric_values(self) -> list[Tensor]:
        return [variable.value.detach().clone() for variable in self._metric_variables()]

    def _set_metric_values(self, values: list[Tensor]) -> None:
        for variable, value in zip(self._metric_variables(), values, strict=True):
            variable.assign(value)

    def metrics_result(self) -> Any:
        """Return the metrics over all ranks at the end of an epoch, and those of this rank within it.

        The state of a metric of Keras is made of sums and counts, which are added over the ranks.
        """
        if self._in_step or not self._checked:
            return self._metrics_result()
        local = self._metric_values()
        if local:
            flat = torch.cat([value.double().reshape(-1) for value in local])
            dist.all_reduce(flat)
            pieces = torch.split(flat, [value.numel() for value in local])
            self._set_metric_values([p.view_as(v).to(v.dtype) for p, v in zip(pieces, local, strict=True)])
        result = self._metrics_result()
        self._set_metric_values(local)
        return result

    def synchronize(self) -> None:
        """Give all ranks the weights and the optimiser of rank 0."""
        if self.strategy.ranks > 1:
            for variable in [*self.model.variables, *self.model.optimizer.variables]:
                dist.broadcast(variable.value.data, 0)

    def begin_epoch(self) -> None:
        """Let all ranks shuffle in the same order, and check the next batch."""
        if self.strategy.ranks > 1:
            state = torch.get_rng_state()
            dist.broadcast(state, 0)
            torch.set_rng_state(state)
            self._checked = False


def _check_losses(model: Any) -> None:
    """Check that every loss is a mean over samples: only then is the mean of a batch that of its shares.

    Raises:
        ConfigError: A loss has another reduction.
    """
    keras = load_keras()
    for loss in keras.tree.flatten(getattr(model, "loss", None)):
        reduction = getattr(loss, "reduction", "mean") if isinstance(loss, keras.losses.Loss) else "mean"
        if reduction not in ("mean", "sum_over_batch_size"):
            raise ConfigError(
                f"the loss {loss.name} has reduction '{reduction}', which differs on several ranks; "
                "use sum_over_batch_size"
            )


def _make_callback(fit: DistributedFit) -> Any:
    """Return the callback that keeps ranks together and records losses and metrics."""

    class Recorder(load_keras().callbacks.Callback):  # type: ignore[misc]
        """Records losses during an epoch, and all metrics at its end."""

        epoch = batches = samples = 0
        recorded_at = 0.0

        def on_train_begin(self, logs: Any = None) -> None:
            fit.synchronize()
            self.recorded_at, self.samples = time.perf_counter(), fit.samples

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.epoch = epoch
            fit.begin_epoch()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.batches += 1
            if logs and time.perf_counter() - self.recorded_at > _RECORD_INTERVAL:
                self._record({"loss": logs["loss"]} if "loss" in logs else {})

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self._record(logs or {})

        def _record(self, values: Mapping[str, Any]) -> None:
            if not values:
                return
            numbers = {name: float(value) for name, value in values.items()}
            fit.record(self.epoch, self.batches, fit.samples - self.samples, numbers)
            self.batches, self.samples, self.recorded_at = 0, fit.samples, time.perf_counter()

    return Recorder()
