"""The cost of asynchronous training: an update of the master, an exchange over MPI and over TCP, complete trainings.

Ratios come from blocks that take turns in one process (or one pair of processes) and compare 25th percentiles, with a
control of one side against itself. Whole trainings, real processes with one thread each, alternate with a plain loop;
their speed is that of the records after the first epoch, and the medians of five repetitions in turns are compared.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import torch
from _contest import Sheet, alternate, main, options, quartile, seconds
from _downpour import BATCH, data
from _pictures import wide
from torch import nn
from torch.nn.functional import cross_entropy

import clew
from clew import Run
from clew.training.asynchronous.master_weights import MasterWeights
from clew.training.asynchronous.messaging.join_token import JoinToken
from clew.training.asynchronous.messaging.tcp import TcpClient
from clew.training.asynchronous.messaging.transport import as_bytes
from clew.training.config import TrainConfig

HERE = Path(__file__).parent
SIZE = 1_244_060
"""Parameters of 784-1200-250-10."""


def apply(sheet: Sheet, rounds: int) -> None:
    """One update at the master, against torch's fused Adam on a flat tensor. Workers check that it is finite."""
    torch.set_num_threads(1)
    update = 1e-3 * torch.randn(SIZE)
    master = MasterWeights(torch.randn(SIZE), SIZE, TrainConfig(strategy="downpour"))

    def fused() -> Callable[[], float]:
        weights = nn.Parameter(torch.randn(SIZE))
        optimizer = torch.optim.Adam([weights], fused=True)
        weights.grad = update
        return lambda: seconds(lambda: [optimizer.step() for _ in range(10)])

    def clew_update() -> float:
        return seconds(lambda: [master.apply(update, {"version": master.version, "finite": True}) for _ in range(10)])

    times = alternate({"clew": clew_update, "torch": fused(), "control": fused()}, rounds)
    seconds_per_update = {name: quartile(each) / 10 for name, each in times.items()}
    sheet.state("torch's fused Adam, 1.24 million parameters", 1e3 * seconds_per_update["torch"], "ms")
    sheet.state("master's apply", 1e3 * seconds_per_update["clew"], "ms")
    sheet.state("fused Adam against itself", seconds_per_update["control"] / seconds_per_update["torch"], "ratio")
    sheet.bar(
        "master's apply against fused Adam",
        seconds_per_update["clew"] / seconds_per_update["torch"],
        1.2,
        "ratio",
        lower=True,
    )


def mpiexec() -> list[str]:
    """Return the command of mpiexec: from the environment of Python if it is there, else of the system."""
    local = Path(sys.executable).parent / "mpiexec"
    return [str(local) if local.exists() else "mpiexec", "-n"]


def over_mpi(sheet: Sheet, rounds: int) -> str:
    command = [*mpiexec(), "2", sys.executable, str(HERE / "_pingpong.py")]
    done = subprocess.run([*command, str(rounds)], capture_output=True, text=True, check=True)
    report = json.loads(done.stdout.strip().splitlines()[-1])
    quartiles = {name: quartile(each[1:]) for name, each in report["times"].items()}
    sheet.state("bare flat ping-pong over MPI, 4.98 MB each way", 1e3 * quartiles["bare"], "ms")
    sheet.state("ping-pong against itself", quartiles["again"] / quartiles["bare"], "ratio")
    sheet.bar(
        "exchange over MPI against bare ping-pong", quartiles["clew"] / quartiles["bare"], 1.3, "ratio", lower=True
    )
    sheet.state("exchange over MPI through memory both see", quartiles["seen"] / quartiles["bare"], "ratio")
    return str(report["library"])


class _Sink:
    """The far side of raw sockets and of a clew server, in a separate process, so that no lock is shared."""

    def __init__(self) -> None:
        code = f"import sys; sys.path.insert(0, {str(HERE)!r}); from _sink import main; main()"
        self.process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.raw, self.address, self.token = self.process.stdout.readline().split()


def over_tcp(sheet: Sheet, rounds: int) -> None:
    """One way on the loopback: how fast tensors arrive, against a raw socket that is read into one buffer."""
    sink = _Sink()
    line = socket.create_connection(("127.0.0.1", int(sink.raw)))
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    client = TcpClient(number=1)
    client.connect(0, sink.address, JoinToken.parse(sink.token))
    client.send(0, "hello")
    tensors = [torch.ones(SIZE) for _ in range(10)]

    def raw() -> float:
        start = time.perf_counter()
        for tensor in tensors:
            line.sendall(as_bytes(tensor))
        line.recv(1)
        return time.perf_counter() - start

    def clew_exchange() -> float:
        start = time.perf_counter()
        for number, tensor in enumerate(tensors):
            client.send(0, "push", {"last": number == 9}, tensor, stable=True)
        assert client.receive(10) is not None
        return time.perf_counter() - start

    times = alternate({"raw": raw, "clew": clew_exchange, "again": raw}, rounds)
    speeds = {name: 10 * 4 * SIZE / quartile(each) / 1e9 for name, each in times.items()}
    sink.process.kill()
    sink.process.wait()
    client.close()
    line.close()
    sheet.state("raw sockets on the loopback", speeds["raw"], "GB/s")
    sheet.state("raw sockets against themselves", speeds["again"] / speeds["raw"], "ratio")
    sheet.state("clew over TCP", speeds["clew"], "GB/s")
    sheet.bar("TCP against raw sockets, one way", speeds["clew"] / speeds["raw"], 0.6, "ratio")


def plain(samples: int, epochs: int) -> float:
    """A plain loop: samples/s of one thread."""
    torch.set_num_threads(1)
    x, y = (torch.from_numpy(each) for each in data(samples))
    model = wide()
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    start = 0.0
    for epoch in range(epochs + 1):
        if epoch == 1:
            start = time.perf_counter()
        order = torch.randperm(samples)
        for first in range(0, samples, BATCH):
            chosen = order[first : first + BATCH]
            optimizer.zero_grad()
            torch.autograd.backward(cross_entropy(model(x[chosen]), y[chosen]))
            optimizer.step()
    return epochs * samples / (time.perf_counter() - start)


def train(folder: Path, samples: int, epochs: int, workers: int, comm: str, **asynchronous: Any) -> float:
    """The same with clew, one thread per process: samples/s after the first epoch."""
    output = folder / f"run-{time.monotonic_ns()}"
    settings = {"output": str(output), "samples": samples, "epochs": epochs + 1, "asynchronous": asynchronous}
    script = [sys.executable, str(HERE / "_downpour.py"), json.dumps(settings)]
    starter = [*mpiexec(), str(1 + workers)] if comm == "mpi" else []
    more = [] if comm == "mpi" else [str(workers)]
    subprocess.run([*starter, *script, *more], check=True, stdout=subprocess.DEVNULL)
    return speed(Run.open(output))


def speed(run: Run) -> float:
    records = list(run.records(kind="workers"))
    first, last = records[0], records[-2]
    samples = [sum(each["samples"] for each in record["workers"].values()) for record in (first, last)]
    return float((samples[1] - samples[0]) / (last["time"] - first["time"]))


def trainings(sheet: Sheet, folder: Path, *, quick: bool) -> None:
    """One master and one worker, exchanging after every batch, against the plain loop."""
    samples, epochs, repeat = (4000, 1, 5) if quick else (15_000, 2, 5)
    kinds: dict[str, Callable[[], float]] = {
        "plain": lambda: plain(samples, epochs),
        "strict": lambda: train(folder, samples, epochs, 1, "mpi"),
        "overlapped": lambda: train(folder, samples, epochs, 1, "mpi", overlap=True),
        "two workers": lambda: train(folder, samples, epochs, 2, "mpi"),
        "strict, TCP": lambda: train(folder, samples, epochs, 1, "tcp"),
        "overlapped, TCP": lambda: train(folder, samples, epochs, 1, "tcp", overlap=True),
        "again": lambda: plain(samples, epochs),
    }
    stated = ("two workers", "strict, TCP", "overlapped, TCP")
    rates: dict[str, list[float]] = {name: [] for name in kinds}
    for number in range(repeat):
        for name, work in kinds.items():
            if not (quick and number and name in stated):
                rates[name].append(work())
    typical = {name: median(each) for name, each in rates.items()}
    plain_rate = typical["plain"]
    sheet.state("plain loop, one thread", plain_rate, "samples/s")
    sheet.state("plain loop against itself", typical["again"] / plain_rate, "ratio")
    sheet.bar("one master, one worker, strict, MPI", typical["strict"] / plain_rate, 0.70, "of the plain loop")
    sheet.bar("one master, one worker, overlapped, MPI", typical["overlapped"] / plain_rate, 0.85, "of the plain loop")
    for name in stated:
        sheet.state(f"one master, {name}", typical[name] / plain_rate, "of the plain loop")


def uneven(sheet: Sheet, folder: Path, *, quick: bool) -> None:
    """Three workers, one of which takes three times as long by sleeping, against three that are alike.

    Seconds are those from the end of the first epoch, when all are at work, to the last batch; the ideal is what the
    equal ones took, times three over two and a third."""
    batches, pause = (60, 0.02) if quick else (200, 0.03)
    from _sleepy import prepared

    dataset = prepared(folder, batches)
    equal, slowed = (_taken(folder, dataset, pause, name) for name in ("", "slowed"))
    sheet.state("batches of the slowest of three workers", slowed[1], "of all")
    ideal = equal[0] * 3 / (2 + 1 / 3)
    sheet.bar("a batch with one slow worker of three", slowed[0] / ideal, 1.15, "of the ideal", lower=True)


def _taken(folder: Path, data: Any, pause: float, slowed: str) -> tuple[float, float]:
    """Seconds per batch, and the smallest share of batches that a worker did."""
    from _sleepy import Sleepy

    run = clew.train(
        Sleepy(Sleepy.Config(pause=pause, folder=str(folder) if slowed else "")),
        data,
        strategy="downpour",
        workers=3,
        threads=1,
        epochs=3,
        batch_size=10,
        output=folder / f"uneven-{slowed}",
        trace=False,
        monitor_seconds=None,
    )
    first, last = next(run.records(kind="workers")), run.last("step")
    assert last is not None
    done = [each["batches"] for each in list(run.records(kind="workers"))[-1]["workers"].values()]
    return (last["time"] - first["time"]) / (last["step"] - first["step"]), min(done) / sum(done)


def measure(sheet: Sheet, folder: Path, arguments: argparse.Namespace) -> Mapping[str, Any]:
    rounds = 10 if arguments.quick else 60
    apply(sheet, rounds)
    library = over_mpi(sheet, rounds)
    over_tcp(sheet, rounds)
    trainings(sheet, folder, quick=arguments.quick)
    uneven(sheet, folder, quick=arguments.quick)
    return {"parameters": SIZE, "batch": BATCH, "mpi": library}


if __name__ == "__main__":
    sys.exit(main(measure, options(__doc__)))
