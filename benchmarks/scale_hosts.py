"""Training on several hosts against the number of ranks: all-reduce and the asynchronous rules, at several networks.

    python benchmarks/scale_hosts.py --json hosts.json
    python benchmarks/scale_hosts.py --quick

Hosts are network namespaces of this machine with a limited bandwidth and a delay in one direction (root is needed).
There is one rank per host, and a host for the master of the asynchronous rules. Every rank works on 32 samples per
step. The arithmetic is replaced by a pause of 4 ms per sample (`_paused.py`), so that ranks do not compete for
the cores of this machine: what remains is the cost of communication. Speeds are those after the first epoch. The time
to the target is that of the first validation that reaches it, from the moment when all ranks are there. There is one
validation per epoch.

`clew bench scale` predicts larger sizes from smaller ones. The prediction from all sizes but the largest is printed
beside what was measured there.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _contest import Sheet, main, options
from _paused import prepared

from clew.bench.scaling.forecast import forecast
from clew.bench.scaling.measurement import ScalingRun, read_measurement
from clew.bench.strategies.host_training import HostTeam
from clew.bench.strategies.hosts import Host, hosts, measure_bandwidth, measure_round_trip
from clew.runs import Run
from clew.training.strategy_table import strategy_traits

RECIPE = Path(__file__).parent / "_paused.py"
PER_RANK, PAUSE = 32, 0.004
TARGET = 0.23
"""Validation loss to reach."""


@dataclass(frozen=True)
class Network:
    """A bandwidth, and the milliseconds that a packet needs in one direction."""

    bandwidth: str
    delay_ms: float

    def __str__(self) -> str:
        return f"{self.bandwidth}, {self.delay_ms:g} ms"


NETWORKS = (Network("10Gbit", 0.1), Network("1Gbit", 0.1), Network("1Gbit", 5.0))


def train(
    strategy: str, ranks: int, team: Sequence[Host], dataset: Path, folder: Path, epochs: int
) -> tuple[ScalingRun, float | None]:
    """Train on the first hosts, and return the measurement and the seconds to the target."""
    run = Run(folder / f"{strategy}-{ranks}")
    logs = folder / f"logs-{strategy}-{ranks}"
    logs.mkdir(parents=True)
    asynchronous = strategy_traits(strategy).asynchronous
    changes = [f"train.batch_size={PER_RANK if asynchronous else PER_RANK * ranks}", "train.threads=1"]
    changes.append(f"pause={PAUSE}")
    changes += ["train.monitor_seconds=null", "train.log_every=1", "train.optimizer.lr=1e-3"]
    changes.append(f"train.target={{metric: loss, direction: minimize, value: {TARGET}}}")
    if asynchronous:
        changes.append(f"train.asynchronous.wait_for={ranks}")
    words = [word for each in changes for word in ("--set", each)]
    command = ["train", str(RECIPE), "--dataset", str(dataset), "--output", str(run.path), "--strategy", strategy]
    whole = HostTeam(team[: ranks + 1], run, logs, threads=1, time_limit=600)
    for _ in whole.train([*command, "--epochs", str(epochs), *words], asynchronous=asynchronous):
        pass
    measured = ScalingRun(strategy, ranks, str(run.path))
    read_measurement(measured, run)
    return measured, _seconds_to_target(run, ranks)


def _seconds_to_target(run: Run, ranks: int) -> float | None:
    records = list(run.records())
    joined = sorted(record["time"] for record in records if record["kind"] == "note" and "joined" in record)
    plan = next(record["time"] for record in records if record["kind"] == "plan")
    start = joined[:ranks][-1] if joined else plan
    reached = (r["time"] for r in records if r["kind"] == "validation" and r["metrics"]["loss"] <= TARGET)
    return next((time - start for time in reached), None)


def measure(sheet: Sheet, folder: Path, arguments: argparse.Namespace) -> Mapping[str, Any]:
    ranks = [int(each) for each in arguments.ranks.split(",")]
    networks = NETWORKS[2:] if arguments.quick else NETWORKS
    dataset = prepared(folder, 1024 if arguments.quick else 4096).path
    facts: dict[str, Any] = {"cores": os.cpu_count(), "networks": {}, "runs": []}
    for number, network in enumerate(networks):
        with hosts(max(ranks) + 1, network.bandwidth, delay=network.delay_ms / 1000) as team:
            line = {"bits_per_second": measure_bandwidth(team[0], team[1]), "seconds": measure_round_trip(*team[:2])}
            facts["networks"][str(network)] = line
            sheet.state(f"{network}: one connection", line["bits_per_second"] / 1e6, "Mbit/s")
            sheet.state(f"{network}: round trip", 1000 * line["seconds"], "ms")
            for strategy in arguments.strategies.split(","):
                measured = []
                for count in ranks:
                    epochs = 3 if arguments.quick else arguments.epochs
                    done, seconds = train(strategy, count, team, dataset, folder / str(number), epochs)
                    measured.append(done)
                    _report(sheet, network, done, seconds, measured[0])
                    facts["runs"].append(_facts(network, done, seconds))
                _report_forecast(sheet, network, measured)
    return facts


def _report(sheet: Sheet, network: Network, done: ScalingRun, seconds: float | None, first: ScalingRun) -> None:
    name = f"{network}: {done.strategy}, {done.workers}"
    efficiency = done.events_per_second / first.events_per_second * first.workers / done.workers
    sheet.state(f"{name}: samples", done.events_per_second, "1/s")
    sheet.state(f"{name}: efficiency", efficiency, "")
    sheet.state(f"{name}: until loss {TARGET:g}", float("nan") if seconds is None else seconds, "s")


def _facts(network: Network, done: ScalingRun, seconds: float | None) -> dict[str, Any]:
    return {
        "network": str(network),
        "strategy": done.strategy,
        "ranks": done.workers,
        "samples_per_second": round(done.events_per_second, 1),
        "shares": {name: round(share, 4) for name, share in done.shares.items()},
        "seconds_to_target": None if seconds is None else round(seconds, 2),
        "parameters": done.parameters,
    }


def _report_forecast(sheet: Sheet, network: Network, measured: Sequence[ScalingRun]) -> None:
    """Compare the largest size with its prediction from the others."""
    *smaller, largest = measured
    predicted = forecast(smaller, [largest.workers], weak=True)
    if not predicted.events_per_second:
        return
    name = f"{network}: {largest.strategy}, {largest.workers} predicted"
    band = itertools.chain(predicted.low, predicted.high)
    sheet.state(f"{name} ({', '.join(f'{each:.0f}' for each in band)})", predicted.events_per_second[0], "1/s")


if __name__ == "__main__":
    parser = options(__doc__, "one network, fewer samples")
    parser.add_argument("--ranks", default="1,2,4,8", help="numbers of ranks")
    parser.add_argument("--strategies", default="allreduce,downpour,easgd,diloco")
    parser.add_argument("--epochs", type=int, default=15, help="at most; a training ends at its target")
    sys.exit(main(measure, parser))
