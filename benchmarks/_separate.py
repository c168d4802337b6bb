"""Small models trained one by one on a device, in every way that is quick: the rivals of packed training.

As a program, it trains for some seconds when it is told to (a line on its input) and prints the number of steps it did.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

SIZE, FEATURES, CLASSES, WIDTH, LAYERS = 64, 15, 5, 64, 3
SAMPLES = 16_384
_SECONDS = 2.0
_PATIENCE = 40.0
"""Seconds that processes get altogether."""
Step = Callable[[], None]


def network() -> nn.Module:
    """The perceptron of the recipe `jetfeatures`, with plain layers: 9.6 thousand parameters."""
    widths = [FEATURES, *[WIDTH] * LAYERS]
    layers = [layer for a, b in itertools.pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(WIDTH, CLASSES))


class Data:
    """Samples on the device, and batches of them in another order every epoch."""

    def __init__(self, device: torch.device, seed: int = 0) -> None:
        rng = torch.Generator().manual_seed(seed)
        self.x = torch.randn((SAMPLES, FEATURES), generator=rng).to(device)
        self.y = torch.randint(0, CLASSES, (SAMPLES,), generator=rng).to(device)
        self._device, self._place, self._order = device, SAMPLES, torch.empty(0, dtype=torch.int64)

    def numbers(self) -> Tensor:
        """Of the next batch."""
        if self._place + SIZE > SAMPLES:
            self._place, self._order = 0, torch.randperm(SAMPLES, device=self._device)
        self._place += SIZE
        return self._order[self._place - SIZE : self._place]


def eager(device: torch.device, data: Data) -> Step:
    """A step as anybody would write it, with torch's fused optimiser."""
    model = network().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)

    def step() -> None:
        numbers = data.numbers()
        optimizer.zero_grad(set_to_none=True)
        cross_entropy(model(data.x[numbers]), data.y[numbers]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def graphed(device: torch.device, data: Data) -> Step:
    """The same recorded once, gathering included, and replayed."""
    model = network().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True, capturable=True)
    chosen = data.numbers().clone()

    def work() -> None:
        optimizer.zero_grad(set_to_none=True)
        cross_entropy(model(data.x[chosen]), data.y[chosen]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    aside: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()

    def step(alive: object = work) -> None:  # the graph writes to memory of model and optimiser
        chosen.copy_(data.numbers())
        graph.replay()

    return step


def rate(step: Step, seconds: float = _SECONDS) -> float:
    """Steps a second, when the device has done them."""
    for _ in range(10):
        step()
    torch.accelerator.synchronize()
    begun, done = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds:
        for _ in range(20):
            step()
        done += 20
        torch.accelerator.synchronize()
    return done / (time.perf_counter() - begun)


def in_streams(device: torch.device, data: Data, count: int) -> float:
    """Steps a second of so many recorded models, each in a stream of its own."""
    streams: list[Any] = [torch.cuda.Stream() for _ in range(count)]  # type: ignore[no-untyped-call]
    steps = []
    for stream in streams:
        with torch.cuda.stream(stream):
            steps.append(graphed(device, data))

    def together() -> None:
        for stream, step in zip(streams, steps, strict=True):
            with torch.cuda.stream(stream):
                step()

    return count * rate(together)


def in_processes(kind: str, count: int) -> float:
    """Steps a second of so many processes together."""
    command = [sys.executable, __file__, kind]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, **pipes) for _ in range(count)]
    watch = threading.Timer(_PATIENCE, _kill, [processes])
    watch.start()
    try:
        for each in processes:
            _heard(each, "ready")
        for each in processes:
            print("go", file=each.stdin, flush=True)
        return sum(float(each.communicate()[0].strip()) for each in processes)
    finally:
        watch.cancel()
        _kill(processes)


def _kill(processes: Sequence[Any]) -> None:
    for each in processes:
        each.kill()
        each.wait()


def _heard(process: Any, word: str) -> None:
    line = process.stdout.readline().strip()
    if line != word:
        raise RuntimeError(f"a rival's process said {line!r}")


def main(arguments: Sequence[str]) -> None:
    torch.set_num_threads(1)
    device = torch.device("cuda")
    step = {"eager": eager, "graphed": graphed}[arguments[0]](device, Data(device))
    for _ in range(10):
        step()
    torch.accelerator.synchronize()
    print("ready", flush=True)
    sys.stdin.readline()
    print(rate(step), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
