"""Validation in a separate process, which evaluates copies of the weights while training continues."""

from __future__ import annotations

import pickle
import subprocess
import sys
import time
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import NamedTuple

from clew.core.process import safe_path
from clew.errors import ClewError, ConfigError, WorkerError, error_from_process
from clew.recipe import Recipe
from clew.recipe_errors import recipe_error
from clew.training.config import TrainConfig


class ValidationResult(NamedTuple):
    """The result of one validation."""

    facts: dict[str, int]
    """The epoch and the step of the weights."""
    metrics: dict[str, float]
    seconds: float
    """How long the validation took."""


class BackgroundValidator:
    """Starts the validation process, and sends it the files of weights to evaluate."""

    def __init__(self, recipe: Recipe, config: TrainConfig) -> None:
        try:
            task = pickle.dumps((recipe, config))
        except Exception as error:
            raise ConfigError(
                f"train.validation background: another process cannot load the recipe ({error})"
            ) from error
        self._pipe, remote_end = Pipe()
        with remote_end:
            number = remote_end.fileno()
            self._process = subprocess.Popen(
                [sys.executable, *safe_path(), "-c", f"from {__name__} import main; main()", str(number)],
                pass_fds=[number],
                stdin=subprocess.DEVNULL,
                process_group=0,  # Ctrl-C is for the training, which ends this process
            )
        self._pipe.send_bytes(task)
        self._pending = 0

    def submit(self, weights: Path, facts: dict[str, int]) -> None:
        """Evaluate the weights in a file. The file must exist until the result has arrived."""
        self._pipe.send((str(weights), facts))
        self._pending += 1

    def results(self, *, wait: bool) -> list[ValidationResult]:
        """Return the results since the last call.

        Args:
            wait: Whether to wait for the results of everything that was submitted.

        Raises:
            WorkerError: The process failed.
        """
        results = []
        while self._pending and (wait or self._pipe.poll()):
            try:
                result = self._pipe.recv()
            except EOFError:
                raise WorkerError(f"the validation process died (exit code {self._process.wait()})") from None
            if isinstance(result, Exception):
                raise result
            self._pending -= 1
            results.append(result)
        return results

    def close(self) -> None:
        """End the process."""
        self._pipe.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def serve(pipe: Connection) -> None:
    """Evaluate what arrives until the pipe is closed. This runs in the validation process."""
    import torch

    from clew.data.dataset import Dataset
    from clew.data.dataset.sampler import Sampler
    from clew.metrics import metric_values
    from clew.training import checkpoint, validation
    from clew.training.device import select_device
    from clew.training.metric_workers import MetricWorkers, metric_worker_limit
    from clew.training.training_data import open_validation_samples

    recipe, config = pickle.loads(pipe.recv_bytes())
    torch.set_num_threads(1)
    device = select_device(0, config.device)
    samples = open_validation_samples(config, Dataset(config.dataset))
    model = recipe.model().to(device)
    workers = MetricWorkers(recipe, metric_worker_limit(config.metric_workers, device))
    while True:
        try:
            path, facts = pipe.recv()
        except EOFError:
            workers.close()
            return
        start = time.perf_counter()
        checkpoint.load(model, Path(path))
        batches = Sampler(len(samples), config.size, shuffle=False).batches(0)
        metrics = metric_values(validation.evaluate_batches(recipe, model, samples, batches, device, workers))
        pipe.send(ValidationResult(facts, metrics, time.perf_counter() - start))


def main() -> None:
    """Entry point of the validation process. Its argument is the file descriptor of the pipe."""
    with Connection(int(sys.argv[1])) as pipe:
        try:
            serve(pipe)
        except ConnectionError:  # the training has ended
            return
        except Exception as error:
            failure = recipe_error(error)
            kind = type(failure).__name__
            text = str(failure) if isinstance(failure, ClewError) else f"{kind}: {failure}"
            pipe.send(error_from_process("validation failed", kind, text))
