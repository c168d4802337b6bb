"""How fast the published particle-flow network (3.29M parameters) trains on one GPU: clew against plain PyTorch.

Complete steps with Adam on random events of 5,033 elements in the memory of the device. The rival is the network in its
usual form (`tests.recipes.particleflow.padded_network`, events padded to 6,400): eager in fp32, tf32 and bf16 autocast,
compiled, and compiled within a CUDA graph of the step. clew uses Triton kernels on packed events, compiled, in a CUDA
graph. All start from the same weights and process the same events. Reported are medians of steps, timed by the device.

Also: the loss of all after the same steps; errors of outputs and gradients against fp32 with elements in the same bins,
compared with those of autocast; peak memory of a step; how long `clew train` waits for data from a prepared dataset.

Without a GPU nothing is measured, but `--tiny` runs everything except the kernels on the CPU, to find mistakes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _contest import Sheet, main, options
from _loading import rate as learned
from _loading import waited
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent.parent))

import clew
from clew import Ragged, Table
from clew.recipes.particleflow import ParticleFlow, ParticleFlowConfig
from clew.recipes.particleflow.binning import BinLayout
from clew.recipes.particleflow.graph_network import GraphFlow
from clew.recipes.particleflow.loss import class_weights, element_losses
from clew.recipes.particleflow.metrics import ParticleFlowMetricsConfig
from clew.recipes.particleflow.settings import ParticleFlowLossConfig, ParticleFlowNetworkConfig
from tests.recipes.particleflow.padded_network import padded_forward

ELEMENTS, PADDED, BATCHES = 5033, 6400, 3
BARS = {16: 1500.0, 4: 1100.0}
TRAINED = {16: 1450.0, 4: 1080.0}
"""Events/s of `clew train` by batch size."""
FIRST_STEP = 30.0
"""Seconds, the compiler included."""
STEPS_OF_LOSS = 30
TINY = ParticleFlowNetworkConfig(width=32, distance=16, bin_size=64, identity_width=32, momentum_width=32)


class Data:
    """Batches of random events: as (events, length, .) for the plain network, and as rows of bins for clew's."""

    def __init__(
        self, events: int, settings: ParticleFlowNetworkConfig, device: torch.device, *, elements: int, padded: int
    ) -> None:
        generator = torch.Generator().manual_seed(1)
        self.offsets = torch.arange(events + 1) * elements
        layout = BinLayout.of(self.offsets, settings.bin_size)
        self.plain, self.binned = [], []
        for _ in range(BATCHES):
            x, y = (torch.randn(events, elements, width, generator=generator) for width in (12, 7))
            x[..., 0] = torch.randint(1, 3, (events, elements), generator=generator).float()
            y[..., 0] = torch.randint(0, 6, (events, elements), generator=generator).float()
            padding = (0, 0, 0, padded - elements)
            self.plain.append(tuple(torch.nn.functional.pad(each, padding).to(device) for each in (x, y)))
            rows = [each.new_zeros(layout.mask.numel(), each.shape[-1]) for each in (x, y)]
            for target, each in zip(rows, (x, y), strict=True):
                target[layout.slot] = each.flatten(0, 1)
            self.binned.append(tuple(each.to(device) for each in rows))
        self.layout, self.device = layout, device


class Plain:
    """The padded network."""

    def __init__(self, data: Data, *, half: bool) -> None:
        self.batches, self.half, self.device = data.plain, half, data.device

    def outputs(self, network: GraphFlow, x: Tensor, orders: list[Tensor] | None = None) -> dict[str, Tensor]:
        with torch.autocast(self.device.type, torch.bfloat16) if self.half else nullcontext():
            return padded_forward(network, x, orders)[0]


class Kernels:
    """clew's, in bins; needs Triton and a GPU."""

    def __init__(self, data: Data, dtype: torch.dtype = torch.bfloat16) -> None:
        from clew.recipes.particleflow.kernels import graph_forward

        sizes = int(data.offsets[-1]), data.layout.bins, data.layout.size
        _, self.fill, self.first = (each.to(data.device) for each in graph_forward.bin_rows(data.offsets, *sizes))
        self.batches, self.dtype, self._graph_forward = data.binned, dtype, graph_forward

    def outputs(self, network: GraphFlow, x: Tensor, orders: list[Tensor] | None = None) -> dict[str, Tensor]:
        """`orders` receives the places in bins of every layer."""
        return self._graph_forward.forward_in_bins(network, x, self.fill, self.first, self.dtype, orders)


class Training:
    """Steps of one contestant, on inputs that stay where they are: a graph replays with what is copied there."""

    def __init__(
        self, kind: Plain | Kernels, settings: ParticleFlowNetworkConfig, device: torch.device, *, compiled: bool
    ) -> None:
        torch.manual_seed(1)
        self.kind, self.device = kind, device
        self.network = GraphFlow(settings).to(device)
        cuda = device.type == "cuda"
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=1e-4, fused=cuda, capturable=cuda)
        self.x, self.y = (each.clone() for each in kind.batches[0])
        self.weight = torch.tensor(class_weights(ParticleFlowLossConfig().expected_counts), device=device)
        self.loss = torch.zeros((), device=device)
        self._losses: Callable[[Tensor, Tensor], Tensor] = torch.compile(self._forward) if compiled else self._forward
        self._graph: torch.cuda.CUDAGraph | None = None

    def _forward(self, x: Tensor, y: Tensor) -> Tensor:
        there = (x[..., 0] != 0).float()
        each = element_losses(self.kind.outputs(self.network, x), y, ParticleFlowLossConfig(), self.weight)
        return (each * there).sum() / there.sum()

    def _work(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        loss = self._losses(self.x, self.y)
        loss.backward()  # type: ignore[no-untyped-call]
        self.loss = loss.detach()  # objects with a reference to the graph of another stream cannot be captured
        self.optimizer.step()

    def step(self, number: int) -> None:
        for buffer, inputs in zip((self.x, self.y), self.kind.batches[number % BATCHES], strict=True):
            buffer.copy_(inputs)
        if self._graph is None:
            self._work()
        else:
            self._graph.replay()

    def capture(self) -> None:
        """From now on a step is one launch."""
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self._work()
        torch.cuda.current_stream().wait_stream(stream)
        self.optimizer.zero_grad(set_to_none=True)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._work()


def rate(training: Training, events: int, steps: int) -> tuple[float, float]:
    """Events per second of the median step; GiB at the peak."""
    for number in range(3):
        training.step(number)
    if training.device.type != "cuda":
        start = time.perf_counter()
        training.step(0)
        return events / (time.perf_counter() - start), 0.0
    torch.cuda.synchronize()
    times = []
    for number in range(steps):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        training.step(number)
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1000)
    return events / statistics.median(times), torch.cuda.max_memory_allocated() / 2**30


def contest(sheet: Sheet, events: int, steps: int, tiny: bool, device: torch.device) -> dict[str, float]:
    """Events/s of all contestants at one batch size."""
    settings = TINY if tiny else ParticleFlowNetworkConfig()
    data = _data(events, tiny, device)
    plain = [("fp32", False, False, False), ("tf32", True, False, False), ("bf16", True, True, False)]
    plain = [*(plain if events == 16 or tiny else []), ("bf16 compiled", True, True, True)]
    rates: dict[str, float] = {}
    for name, tf32, half, compiled in plain:
        torch.backends.cuda.matmul.allow_tf32 = tf32
        _fresh(device)
        training = Training(Plain(data, half=half), settings, device, compiled=compiled and not tiny)
        rates |= _report_rate(sheet, f"plain {name}", training, events, steps)
        if compiled and device.type == "cuda":
            training.capture()
            rates |= _report_rate(sheet, f"plain {name}, CUDA graph", training, events, steps)
        del training
    if device.type == "cuda":
        for compiled in (False, True):
            _fresh(device)
            training = Training(Kernels(data), settings, device, compiled=compiled)
            training.capture()
            name = f"clew{', compiled' if compiled else ''}, CUDA graph"
            rates |= _report_rate(sheet, name, training, events, 2 * steps)
            del training
    return rates


def _data(events: int, tiny: bool, device: torch.device) -> Data:
    settings, elements, padded = (TINY, 150, 256) if tiny else (ParticleFlowNetworkConfig(), ELEMENTS, PADDED)
    return Data(events, settings, device, elements=elements, padded=padded)


def _fresh(device: torch.device) -> None:
    torch._dynamo.reset()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _report_rate(sheet: Sheet, name: str, training: Training, events: int, steps: int) -> dict[str, float]:
    value, memory = rate(training, events, steps)
    sheet.state(f"{name}, batch {events}", value, "events/s")
    sheet.state(f"{name}, batch {events}: peak", memory, "GiB")
    return {name: value, f"{name}: GiB": memory}


def losses(sheet: Sheet, tiny: bool, device: torch.device) -> dict[str, float]:
    """The loss of each after the same steps on the same events, from the same weights."""
    settings, data = TINY if tiny else ParticleFlowNetworkConfig(), _data(4, tiny, device)
    torch.backends.cuda.matmul.allow_tf32 = False
    kinds: dict[str, Plain | Kernels] = {"plain fp32": Plain(data, half=False), "plain bf16": Plain(data, half=True)}
    if device.type == "cuda":
        kinds["clew"] = Kernels(data)
    losses_by_name = {}
    for name, kind in kinds.items():
        training = Training(kind, settings, device, compiled=False)
        for number in range(3 if tiny else STEPS_OF_LOSS):
            training.step(number)
        losses_by_name[name] = training.loss.item()
        sheet.state(f"{name}: loss after {3 if tiny else STEPS_OF_LOSS} steps", losses_by_name[name], "")
    return losses_by_name


def errors(sheet: Sheet, tiny: bool, device: torch.device) -> dict[str, tuple[float, float]]:
    """Relative errors of outputs and of all gradients against fp32, with elements in the same bins for all."""
    settings, data = TINY if tiny else ParticleFlowNetworkConfig(), _data(2, tiny, device)
    torch.backends.cuda.matmul.allow_tf32 = False
    orders: list[Tensor] | None = None
    runs: dict[str, tuple[Tensor, Tensor]] = {}
    if device.type == "cuda":
        orders, runs["clew"] = _by_kernels(data, settings)
    for name, half in (("plain fp32", False), ("plain bf16", True)):
        runs[name] = _outputs_and_gradients(Plain(data, half=half), settings, data, orders)
    computed = {}
    for name in ("plain bf16", "clew"):
        if name in runs:
            parts = [float((a - b).norm() / b.norm()) for a, b in zip(runs[name], runs["plain fp32"], strict=True)]
            computed[name] = parts[0], parts[1]
            sheet.state(f"{name}: error of outputs against fp32", parts[0], "")
            sheet.state(f"{name}: error of gradients against fp32", parts[1], "")
    return computed


def _outputs_and_gradients(
    kind: Plain | Kernels, settings: ParticleFlowNetworkConfig, data: Data, orders: list[Tensor] | None
) -> tuple[Tensor, Tensor]:
    training = Training(kind, settings, data.device, compiled=False)
    x, y = kind.batches[0]
    there = x[..., 0] != 0
    predictions = kind.outputs(training.network, x, orders)
    (element_losses(predictions, y, ParticleFlowLossConfig(), training.weight) * there).sum().backward()  # type: ignore[no-untyped-call]
    outputs = torch.cat([predictions[name][there].float().flatten() for name in ("class", "charge", "momentum")])
    gradients = [p.grad.float().flatten() for p in training.network.parameters() if p.grad is not None]
    return outputs.detach(), torch.cat(gradients)


def _by_kernels(data: Data, settings: ParticleFlowNetworkConfig) -> tuple[list[Tensor], tuple[Tensor, Tensor]]:
    """Outputs and gradients, and the orders that the kernels filled bins in, for the padded network."""
    indices: list[Tensor] = []
    outputs = _outputs_and_gradients(Kernels(data), settings, data, indices)
    events, length = data.plain[0][0].shape[:2]
    rows = data.layout.mask.numel() // events  # all events have the same length
    spare = torch.arange(rows, length, device=data.device).expand(2, events, -1)
    orders = [torch.cat([each.view(2, events, rows).long() % rows, spare], dim=-1) for each in indices]
    return orders, outputs


def data_wait(sheet: Sheet, folder: Path, tiny: bool) -> None:
    """How long `clew.train` itself waits for batches of 16 from a prepared dataset."""
    rng, (events, mean) = np.random.default_rng(1), (32, 150) if tiny else (320, ELEMENTS)
    lengths = rng.poisson(mean, events)
    elements, targets = (rng.normal(size=(lengths.sum(), width)).astype(np.float32) for width in (12, 7))
    elements[:, 0], targets[:, 0] = rng.integers(1, 3, len(elements)), rng.integers(0, 6, len(elements))
    column = Ragged.from_lengths(elements, lengths)
    folder.mkdir()
    Table({"event": np.arange(events), "elements": column, "targets": column.share(targets)}).save(folder / "a.h5")
    recipe = ParticleFlow(
        ParticleFlowConfig(
            model=TINY if tiny else ParticleFlowNetworkConfig(), metrics=ParticleFlowMetricsConfig(jets=False)
        )
    )
    data = clew.prepare(recipe, input=[str(folder / "a.h5")], output=str(folder / "data"), workers=1)
    run = {"epochs": 1 if tiny else 6, "precision": "bf16", "batch_size": 16}
    done = waited(sheet, "clew train particleflow", recipe, data, folder / "run", bar=not tiny, **run)
    if not tiny:
        sheet.state("clew train particleflow, recorded, batch 16", learned(done, skip=2), "events/s")
        for batch, bar in TRAINED.items():
            whole_training(sheet, recipe, data, folder / f"compiled-{batch}", batch, bar)


def whole_training(
    sheet: Sheet, recipe: ParticleFlow, data: clew.Dataset, folder: Path, batch: int, bar: float
) -> None:
    """`clew train` with `train.compile`: events/s after the first epochs, and seconds until the first step is done."""
    run = clew.train(
        recipe, data, output=folder, epochs=8, precision="bf16", batch_size=batch, compile=True, log_every=1
    )
    sheet.bar(f"clew train particleflow, compiled, batch {batch}", learned(run, skip=4), bar, "events/s")
    planned, first = (next(run.records(kind=kind))["time"] for kind in ("plan", "step"))
    sheet.bar(f"seconds until its first step is done, batch {batch}", first - planned, FIRST_STEP, "s", lower=True)


def measure(sheet: Sheet, folder: Path, arguments: argparse.Namespace) -> Mapping[str, Any]:
    if not torch.cuda.is_available() and not arguments.tiny:
        print("skipped: torch finds no GPU here (--tiny runs the plain part on the CPU)")
        return {}
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    steps = 8 if arguments.quick else 20
    wrong = errors(sheet, arguments.tiny, device)
    last = losses(sheet, arguments.tiny, device)
    rates = {events: contest(sheet, events, steps, arguments.tiny, device) for events in (16, 4)}
    data_wait(sheet, folder / "wait", arguments.tiny)
    if device.type == "cuda" and not arguments.tiny:
        _bars(sheet, wrong, last, rates)
    size = sum(each.numel() for each in GraphFlow(ParticleFlowNetworkConfig()).parameters())
    name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    return {"device": name, "steps": steps, "parameters": size, "elements": ELEMENTS, "rates": rates}


def _bars(
    sheet: Sheet, wrong: dict[str, tuple[float, float]], last: dict[str, float], rates: dict[int, dict[str, float]]
) -> None:
    for events, limit in BARS.items():
        speeds = {name: value for name, value in rates[events].items() if not name.endswith("GiB")}
        best = max(value for name, value in speeds.items() if name.startswith("clew"))
        rival = max(value for name, value in speeds.items() if name.startswith("plain"))
        sheet.bar(f"clew, batch {events}", best, limit, "events/s")
        sheet.state(f"against the best plain one, batch {events}", best / rival, "x")
    fastest = max(
        (name for name in rates[16] if name.startswith("clew") and "GiB" not in name), key=rates[16].__getitem__
    )
    sheet.bar("the same at batch 16: peak", rates[16][f"{fastest}: GiB"], 5.0, "GiB", lower=True)
    away = abs(last["clew"] - last["plain fp32"]) / max(abs(last["plain bf16"] - last["plain fp32"]), 1e-3)
    sheet.bar("loss: distance from fp32 over that of autocast", away, 2.0, "x", lower=True)
    for place, what in enumerate(("outputs", "gradients")):
        ratio = wrong["clew"][place] / wrong["plain bf16"][place]
        sheet.bar(f"errors of {what} over those of autocast", ratio, 1.1, "x", lower=True)


if __name__ == "__main__":
    parser = options(__doc__)
    parser.add_argument("--tiny", action="store_true", help="small sizes, on the CPU where there is no GPU")
    sys.exit(main(measure, parser))
