"""Validation beside the training: a spare process judges copies of the weights while the ranks go on learning."""

from __future__ import annotations

import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import NamedTuple

from clew.errors import ConfigError, WorkerError
from clew.recipe import Recipe
from clew.training.config import TrainConfig


class ValidationResult(NamedTuple):
    """One validation that is done."""

    facts: dict[str, int]
    """The epoch and the step of the weights."""
    metrics: dict[str, float]
    seconds: float


class BackgroundValidator:
    """The side of the training. Weights are handed over as files; what was judged is what is kept."""

    def __init__(self, recipe: Recipe, config: TrainConfig) -> None:
        try:
            work = pickle.dumps((recipe, config))
        except Exception as error:
            raise ConfigError(
                f"train.validation background: another process cannot load the recipe ({error})"
            ) from error
        self._here, there = Pipe()
        with there:
            number = there.fileno()
            self._process = subprocess.Popen(
                [sys.executable, "-c", f"from {__name__} import main; main()", str(number)],
                pass_fds=[number],
                stdin=subprocess.DEVNULL,
            )
        self._here.send_bytes(work)
        self._waiting = 0

    def submit(self, weights: Path, facts: dict[str, int]) -> None:
        """Judge the weights in a file, which must stay until the result is there."""
        self._here.send((str(weights), facts))
        self._waiting += 1

    def results(self, *, wait: bool) -> list[ValidationResult]:
        """What has been judged since the last call; with `wait`, all that was submitted.

        Raises:
            WorkerError: the process failed; its own words.
        """
        found = []
        while self._waiting and (wait or self._here.poll()):
            try:
                result = self._here.recv()
            except EOFError:
                raise WorkerError(f"the validating process died (exit code {self._process.wait()})") from None
            if isinstance(result, str):
                raise WorkerError(f"validation failed: {result}")
            self._waiting -= 1
            found.append(result)
        return found

    def close(self) -> None:
        """End the process."""
        self._here.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def serve(pipe: Connection) -> None:
    """The side of the spare process: judge what comes until the pipe closes."""
    import torch

    from clew.data.dataset import Dataset
    from clew.data.dataset.sample_store import Disk, Memory
    from clew.data.dataset.sampler import Sampler
    from clew.metrics import metric_values
    from clew.training import checkpoint, validation
    from clew.training.training_data import default_device

    recipe, config = pickle.loads(pipe.recv_bytes())
    torch.set_num_threads(1)
    device = default_device(0)
    dataset = Dataset(config.dataset)
    samples = Memory(dataset.read("val")) if config.loading.keep == "memory" else Disk(dataset, "val", None)
    model = recipe.model().to(device)
    while True:
        try:
            path, facts = pipe.recv()
        except EOFError:
            return
        begun = time.perf_counter()
        checkpoint.load(model, Path(path))
        batches = Sampler(len(samples), config.size, shuffle=False).batches(0)
        found = metric_values(validation.evaluate_batches(recipe, model, samples, batches, device))
        pipe.send(ValidationResult(facts, found, time.perf_counter() - begun))


def main() -> None:
    """The spare process; its argument is the number of the pipe."""
    with Connection(int(sys.argv[1])) as pipe:
        _guarded(pipe, serve)


def _guarded(pipe: Connection, work: Callable[[Connection], None]) -> None:
    try:
        work(pipe)
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {error}")
