"""Records passed on to other tools as they are written: TensorBoard files, an MLflow server or folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Protocol

from clew.errors import ConfigError
from clew.runs.folder import Run
from clew.runs.record_metrics import LEAD, finite_number, metric_values
from clew.runs.records import Record


class Listener(Protocol):
    """Sees every record of rank 0."""

    def see(self, record: Record) -> None:
        """One more record."""

    def close(self) -> None:
        """End."""


def listeners(names: Sequence[str], run: Run) -> list[Listener]:
    """Open the listeners that the settings name.

    Raises:
        ConfigError: A package is not installed.
    """
    classes: dict[str, Any] = {"tensorboard": TensorBoard, "mlflow": MLflow}
    opened: list[Listener] = []
    for name in names:
        try:
            opened.append(classes[name](run))
        except ImportError as error:
            raise ConfigError(
                f"train.writers: {name} is not installed ({error}); pip install 'clew[{name}]'"
            ) from error
    return opened


class _Metrics:
    """The metrics of the records of rank 0, named as on the server."""

    def __init__(self) -> None:
        self._samples = 0.0

    def of(self, record: Record) -> dict[str, float]:
        """Return the finite metrics of a record by name."""
        values = metric_values(LEAD, record, self._samples)
        metrics = {name: value for name, value in values if value is not None}
        if record["kind"] in ("step", "start", "resume"):
            self._samples = finite_number(record.get("samples")) or 0.0
        return metrics


class TensorBoard:
    """Event files in the run's folder: `tensorboard --logdir runs`."""

    def __init__(self, run: Run) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(run.path / "tensorboard"))
        self._metrics = _Metrics()

    def see(self, record: Record) -> None:
        for name, value in self._metrics.of(record).items():
            self._writer.add_scalar(name, value, record["step"], record["time"])

    def close(self) -> None:
        self._writer.close()


class MLflow:
    """A run of MLflow at MLFLOW_TRACKING_URI; by default in `mlruns`, next to the runs."""

    def __init__(self, run: Run) -> None:
        import mlflow

        self._metrics = _Metrics()
        folder = (run.path.parent / "mlruns").resolve()
        self._client = mlflow.MlflowClient(os.environ.get("MLFLOW_TRACKING_URI", folder.as_uri()))
        existing = self._client.get_experiment_by_name("clew")
        experiment = existing.experiment_id if existing else self._client.create_experiment("clew")
        self._id = self._client.create_run(experiment, run_name=run.name).info.run_id
        for name, value in _flat(run.config().data).items():
            self._client.log_param(self._id, name, str(value)[:500])

    def see(self, record: Record) -> None:
        for name, value in self._metrics.of(record).items():
            self._client.log_metric(self._id, name, value, int(record["time"] * 1000), record["step"])
        if record["kind"] == "end":
            status = {"finished": "FINISHED", "failed": "FAILED"}.get(record["status"], "KILLED")
            self._client.set_terminated(self._id, status)

    def close(self) -> None:
        """There is nothing to close."""


def _flat(data: Any, before: str = "") -> dict[str, Any]:
    if not isinstance(data, dict):
        return {before: data}
    return {
        k: v for name, inner in data.items() for k, v in _flat(inner, f"{before}.{name}" if before else name).items()
    }
