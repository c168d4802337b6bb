"""Processes that compute the metrics of batches while this process applies the network to the next ones.

A GPU reconstructs an event of 5,000 particles in less than a millisecond, and a core needs 20 for its jets and
histograms. So metrics are computed by the other cores. Samples and outputs reach them through shared memory.

Processes are an optimisation, and never the reason of a failure: they are started after metrics have taken a while in
this process, and whatever they cannot compute is computed here.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import connection
from multiprocessing.connection import Connection, Pipe
from typing import Any, NamedTuple

import torch

from clew.core.process import safe_path
from clew.data.table import Table
from clew.jobs.worker_process import ignore_terminal
from clew.metrics import Metric
from clew.recipe import Recipe
from clew.recipe_errors import recipe_errors
from clew.runs.environment import allowed_cores
from clew.training.validation import recipe_metrics

Metrics = dict[str, Metric]
_START_SECONDS = 1.0
"""Seconds that metrics take in this process before others are started."""
_ALIGNMENT = 64
"""Arrays start at multiples of so many bytes."""
_PROGRAM = f"from {__name__} import main; main()"


def metric_worker_limit(setting: int | None, device: torch.device, local_ranks: int = 1) -> int:
    """Return how many processes may compute metrics.

    Args:
        setting: The setting `train.metric_workers`.
        device: Where the network computes. Without a setting there are no processes if it is a CPU: the network needs
            the cores then.
        local_ranks: The ranks of this machine, which share its cores.
    """
    if not hasattr(os, "memfd_create"):
        return 0
    if setting is not None:
        return setting
    return 0 if device.type == "cpu" else max(0, allowed_cores() // local_ranks - 1)


class _Message(NamedTuple):
    """Samples and outputs of a batch: a pickle, and where its arrays are in the memory of the worker."""

    content: bytes
    arrays: list[tuple[int, int]]
    """First byte and number of bytes of each array."""
    size: int


@dataclass(eq=False)
class MetricTask:
    """The metrics of a batch, now or later."""

    _workers: MetricWorkers
    _compute: Callable[[], Metrics] | None
    """Computes them in this process. It holds the samples and outputs, so it is dropped as soon as possible."""
    _metrics: Metrics = field(default_factory=dict)

    def result(self) -> Metrics:
        """Wait for the metrics.

        Raises:
            RecipeError: The code of the recipe failed.
        """
        while self._compute is not None and self._workers.is_working_on(self):
            self._workers.receive(wait=True)
        if self._compute is not None:
            self.finish(self._compute())
        return self._metrics

    def finish(self, metrics: Metrics) -> None:
        """Store the metrics."""
        self._metrics, self._compute = metrics, None


@dataclass(eq=False)
class _Worker:
    """One process, seen from here."""

    pipe: Connection
    file: int
    """Memory that the process shares with this one."""
    memory: mmap.mmap | None = None
    task: MetricTask | None = None
    is_ready: bool = False

    def send(self, task: MetricTask, batch: tuple[Table, Mapping[str, Any], bool]) -> None:
        """Send samples, outputs and `evaluation` of a batch, and remember whose they are.

        Raises:
            OSError: The process has ended, or there is no memory.
        """
        buffers: list[pickle.PickleBuffer] = []
        content = pickle.dumps(batch, protocol=5, buffer_callback=buffers.append)
        views = [buffer.raw() for buffer in buffers]
        places, size = _places(views)
        if self.memory is None or len(self.memory) < size:
            os.ftruncate(self.file, size + size // 4 + _ALIGNMENT)
            self.memory = mmap.mmap(self.file, 0)
        for (first, length), view in zip(places, views, strict=True):
            self.memory[first : first + length] = view
        self.pipe.send(_Message(content, places, len(self.memory)))
        self.task = task

    def close(self) -> None:
        """Let the process end."""
        self.pipe.close()
        os.close(self.file)


def _places(views: Sequence[memoryview]) -> tuple[list[tuple[int, int]], int]:
    """Return where each array begins in a memory for all of them, its bytes, and the bytes of all."""
    places, end = [], 0
    for view in views:
        places.append((end, view.nbytes))
        end += -(-view.nbytes // _ALIGNMENT) * _ALIGNMENT
    return places, end


@dataclass
class MetricWorkers:
    """Computes the metrics of batches, in other processes as soon as there are some. Close it at the end.

    Args:
        recipe: The recipe.
        limit: Largest number of processes; 0: everything is computed in this process.
        start_seconds: Seconds that metrics take in this process before others are started.
    """

    recipe: Recipe
    limit: int
    start_seconds: float = _START_SECONDS
    _spent: float = 0.0
    _workers: list[_Worker] = field(default_factory=list)
    _helper: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> int:
        """Number of processes that are ready to compute."""
        return sum(worker.is_ready for worker in self._workers)

    def submit(
        self,
        samples: Table,
        outputs: Mapping[str, Any],
        place: Callable[[], str] | str = "",
        *,
        evaluation: bool = False,
    ) -> MetricTask:
        """Have the metrics of a batch computed.

        Args:
            samples: The samples.
            outputs: The outputs of the network for them.
            place: Which samples these are, or a function that returns it, for the message of an error. Default: the
                caller says so.
            evaluation: Whether `Recipe.evaluation_metrics` are wanted, too.
        """

        def compute() -> Metrics:
            with recipe_errors(place) if place else contextlib.nullcontext():
                return recipe_metrics(self.recipe, samples, outputs, evaluation=evaluation)

        task = MetricTask(self, compute)
        worker = self._free_worker()
        if worker is None:
            start = time.perf_counter()
            task.result()
            self._spent += time.perf_counter() - start
            self._start_when_worthwhile()
            return task
        try:
            worker.send(task, (samples, outputs, evaluation))
        except (OSError, ValueError, TypeError, AttributeError, pickle.PicklingError):
            self._stop()
        return task

    def is_working_on(self, task: MetricTask) -> bool:
        """Return whether a process is computing this task."""
        return any(worker.task is task for worker in self._workers)

    def receive(self, *, wait: bool) -> None:
        """Receive what processes have computed.

        Args:
            wait: Whether to wait until there is something.
        """
        by_pipe = {worker.pipe: worker for worker in self._workers}
        for pipe in connection.wait(list(by_pipe), None if wait else 0):
            worker = by_pipe[pipe]  # type: ignore[index]
            try:
                metrics = worker.pipe.recv()
            except Exception:  # the process was killed, or a metric cannot be loaded here
                metrics = None
            if metrics is None:  # compute that batch here: if it fails here too, the error is the user's to see
                self._stop()
                return
            if worker.task is not None:
                worker.task.finish(metrics)
            worker.task, worker.is_ready = None, True

    def close(self) -> None:
        """End the processes."""
        self._stop()

    def _free_worker(self) -> _Worker | None:
        """Return a process that has nothing to do. Wait for one if all are busy; None if none is ready yet."""
        self.receive(wait=False)
        while ready := [worker for worker in self._workers if worker.is_ready]:
            free = [worker for worker in ready if worker.task is None]
            if free:
                return free[0]
            self.receive(wait=True)
        return None

    def _start_when_worthwhile(self) -> None:
        if self._helper is not None or not self.limit or self._spent < self.start_seconds:
            return
        try:
            recipe = pickle.dumps(self.recipe)
        except Exception:  # typed into a notebook, for example
            self.limit = 0
            return
        ends = []
        for _ in range(self.limit):
            here, there = Pipe()
            self._workers.append(_Worker(here, os.memfd_create("clew")))
            ends.append(there)
        words = [f"{end.fileno()}:{worker.file}" for end, worker in zip(ends, self._workers, strict=True)]
        self._helper = subprocess.Popen(
            [sys.executable, *safe_path(), "-c", _PROGRAM, *words],
            stdin=subprocess.PIPE,
            pass_fds=[int(number) for word in words for number in word.split(":")],
            process_group=0,  # Ctrl-C is for this process, which ends the helper
        )
        for end in ends:
            end.close()
        assert self._helper.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._helper.stdin as stream:
            stream.write(recipe)

    def _stop(self) -> None:
        """End all processes, and compute everything in this one from now on."""
        self.limit = 0
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.close()
        if self._helper is not None:
            try:
                self._helper.wait(5)
            except subprocess.TimeoutExpired:
                os.killpg(self._helper.pid, 9)
                self._helper.wait()
            self._helper = None


def main() -> None:
    """Entry point of the helper process, which loads everything once and divides itself into the workers.

    Its standard input is the pickled recipe; its arguments are the pipe and the memory of each worker.
    """
    files = [tuple(map(int, word.split(":"))) for word in sys.argv[1:]]
    ignore_terminal()
    try:
        recipe = pickle.loads(sys.stdin.buffer.read())
    except Exception:  # this process cannot load it; the other one computes the metrics
        return
    torch.set_num_threads(1)
    children = []
    for pipe, memory in files:
        child = os.fork()
        if not child:
            for number in {number for pair in files for number in pair} - {pipe, memory}:
                os.close(number)
            _work(recipe, Connection(pipe), memory)
            os._exit(0)
        children.append(child)
    for number in (number for pair in files for number in pair):
        os.close(number)
    for child in children:
        os.waitpid(child, 0)


def _work(recipe: Recipe, pipe: Connection, file: int) -> None:
    """Compute what arrives until the other process has ended or closed the pipe."""
    memory: mmap.mmap | None = None
    metrics: Metrics | None = {}  # the first message says that this process is ready
    try:
        while True:
            pipe.send(metrics)
            if metrics is None:
                return
            message = pipe.recv()
            if memory is None or len(memory) < message.size:
                memory = mmap.mmap(file, message.size)
            view = memoryview(memory)
            arrays = [view[first : first + length] for first, length in message.arrays]
            samples, outputs, evaluation = pickle.loads(message.content, buffers=arrays)
            try:
                metrics = recipe_metrics(recipe, samples, outputs, evaluation=evaluation)
            except Exception:  # the other process computes it again, and reports the error
                metrics = None
            del samples, outputs, arrays, view
    except (EOFError, OSError):
        return
