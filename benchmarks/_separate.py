"""Small models trained one by one on a device, in several fast ways: the rivals of packed training.

As a program (`_separate.py KIND [STREAMS]`) it prints a line when it is ready, trains for some seconds after it reads a
line from its input, and prints its steps per second. A rival is one or several such processes. Processes that hang are
stopped.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

SIZE, FEATURES, CLASSES, WIDTH, LAYERS = 64, 15, 5, 64, 3
SAMPLES = 16_384
_SECONDS, _START, _HANG = 2.0, 40.0, 15.0
"""Seconds of training, seconds to start up, and seconds until a running process counts as hanging."""
_AHEAD = 3
"""Orders that wait in a stream at most."""
Step = Callable[[], None]


def network() -> nn.Module:
    """The perceptron of the recipe `jetfeatures`, with plain layers: 9.6 thousand parameters."""
    widths = [FEATURES, *[WIDTH] * LAYERS]
    layers = [layer for a, b in itertools.pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(WIDTH, CLASSES))


class Data:
    """Samples on the device; every model has its own order of samples, a new one every epoch."""

    def __init__(self, device: torch.device, seed: int = 0) -> None:
        rng = torch.Generator().manual_seed(seed)
        self.x = torch.randn((SAMPLES, FEATURES), generator=rng).to(device)
        self.y = torch.randint(0, CLASSES, (SAMPLES,), generator=rng).to(device)
        self._device = device

    def numbers(self, batches: int = 1) -> Callable[[], Tensor]:
        """A function that returns the numbers of the next batches, in the current stream."""
        place, order, some = SAMPLES, torch.empty(0, dtype=torch.int64), batches * SIZE

        def following() -> Tensor:
            nonlocal place, order
            if place + some > SAMPLES:
                place, order = 0, torch.randperm(SAMPLES, device=self._device)
            place += some
            return order[place - some : place]

        return following


def eager(device: torch.device, data: Data) -> Step:
    """Return a plain training step with the fused optimiser of torch."""
    model, following = network().to(device), data.numbers()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)

    def step() -> None:
        numbers = following()
        optimizer.zero_grad(set_to_none=True)
        cross_entropy(model(data.x[numbers]), data.y[numbers]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def graphed(device: torch.device, data: Data, stream: Any, steps: int = 1) -> Step:
    """Steps of a model, recorded once with the gathering of batches, and replayed in a stream. Recorded there too: the
    memory that cuBLAS works in belongs to a stream, and graphs that share some must not run at the same time."""
    model, following = network().to(device), data.numbers(steps)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True, capturable=True)
    chosen = torch.zeros((steps, SIZE), dtype=torch.int64, device=device)

    def work() -> None:
        for numbers in chosen:
            optimizer.zero_grad(set_to_none=True)
            cross_entropy(model(data.x[numbers]), data.y[numbers]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        work()
    torch.cuda.synchronize()
    waiting: deque[Any] = deque()

    def step(alive: object = work) -> None:  # the graph writes to memory of model and optimiser
        if len(waiting) == _AHEAD:
            waiting.popleft().synchronize()
        with torch.cuda.stream(stream):
            chosen.copy_(following().view_as(chosen))
            graph.replay()
            event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        waiting.append(event)

    return step


def in_streams(device: torch.device, data: Data, count: int, steps: int) -> Step:
    """One round of recorded models, each in its own stream."""
    streams: list[Any] = [torch.cuda.Stream() for _ in range(count)]  # type: ignore[no-untyped-call]
    models = [graphed(device, data, stream, steps) for stream in streams]

    def together() -> None:
        for each in models:
            each()

    return together


def rate(step: Step, seconds: float = _SECONDS) -> float:
    """Return the calls per second, measured until the device has finished."""
    for _ in range(10):
        step()
    torch.accelerator.synchronize()
    start, done = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        for _ in range(20):
            step()
        done += 20
    torch.accelerator.synchronize()
    return done / (time.perf_counter() - start)


class Rival:
    """Processes that train in the same way at the same time. After their start they wait for a signal.

    Raises RuntimeError where one fails or hangs."""

    def __init__(self, *kind: str | int, processes: int = 1) -> None:
        self._command, self._many, self._until = [sys.executable, __file__, *map(str, kind)], processes, 0.0
        self._processes = list[Any]()

    def begin(self) -> None:
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        pipes["env"] = {**os.environ, "CUDA_DEVICE_MAX_CONNECTIONS": "32"}  # streams that do not wait for each other
        self._until = time.monotonic() + _START
        self._processes = [subprocess.Popen(self._command, **pipes) for _ in range(self._many)]

    def rate(self) -> float:
        """Return the model steps per second of all processes."""
        try:
            for each in self._processes:
                self._read_line(each, "begin")
            self._until = time.monotonic() + _HANG
            for each in self._processes:
                print("go", file=each.stdin, flush=True)
            return sum(float(self._read_line(each, "end")) for each in self._processes)
        finally:
            self.end()

    def end(self) -> None:
        for each in self._processes:
            each.kill()
        until = time.monotonic() + 5
        for each in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                each.wait(max(0.0, until - time.monotonic()))

    def _read_line(self, process: Any, what: str) -> str:
        left = max(0.0, self._until - time.monotonic())
        if not select.select([process.stdout], [], [], left)[0]:
            raise RuntimeError(f"hung: it did not {what} in time")
        line: str = process.stdout.readline().strip()
        if not line:
            raise RuntimeError(f"failed before it could {what}, with code {process.wait(5)}")
        return line


def main(kind: str, streams: str = "1") -> None:
    """`eager`, or the number of steps in a graph."""
    torch.set_num_threads(1)
    device, count = torch.device("cuda"), int(streams)
    data = Data(device)
    steps = 1 if kind == "eager" else int(kind)
    step = eager(device, data) if kind == "eager" else in_streams(device, data, count, steps)
    for _ in range(10):
        step()
    torch.accelerator.synchronize()
    print("ready", flush=True)
    sys.stdin.readline()
    print(count * steps * rate(step), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
