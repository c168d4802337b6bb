"""How fast hits become graphs, sequences and tracks, and what ragged batches save in training.

Synthetic BES-III-like events (mean 56 hits, 4 tracks), 500 at a time, one core. The rival in training is the GraphNet
on dense padded batches as it was published: incidence matrices (events, nodes, edges), batched matrix products, every
event padded to the largest of its batch. Same parameters, same events in the same batches, one process each in turn;
the rival's scores are compared with ours first. A second rival gets events of similar size together, which helps it.
The largest events (see LARGEST) are left out of the comparison, which helps both rivals.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from clew import Batch, Ragged, Table, spec
from clew.dataset.batch import to_batch
from clew.ledger.environment import capture
from clew.recipe import Recipe
from clew.recipes.tracking.network import GraphNet, edge_loss
from clew.recipes.tracking.simulate import simulate

CHUNK = 500
KINDS = ("ragged", "dense", "sorted")
BATCH = 32
"""The recipe's own; with the published 128 the rival was killed for memory on a machine of 23 GB."""
LARGEST = 1000
"""Edges: events with more are left out of the comparison in training, in the rival's favour and for the same reason."""


def events(count: int, recipe: Recipe) -> Table:
    """Generated events after the recipe's transforms."""
    made = simulate(count, 1)
    x = Ragged.from_lengths(made.x, np.bincount(made.event, minlength=count))
    rest = {name: x.share(getattr(made, name)) for name in ("y", "z", "station", "track")}
    table = Table({"event": np.arange(count), "x": x, **rest})
    for transform in recipe.transforms():
        table = transform(table)
    return table


def rate(work: Callable[[Table], Any], table: Table, repeat: int) -> float:
    """Events per CPU-second, in chunks; the median of some passes after one that does not count."""
    chunks = [table.slice(first, first + CHUNK) for first in range(0, len(table), CHUNK)]
    times = []
    for _ in range(repeat + 1):
        begun = time.process_time()
        for chunk in chunks:
            work(chunk)
        times.append(time.process_time() - begun)
    return len(table) / statistics.median(times[1:])


def building(name: str, table: Table, repeat: int) -> float:
    """Events per CPU-second from outputs to tracks; for TrackNET with the network, which extends the seeds itself.

    Scores are the truth with noise: as many tracks as a trained network gives, and as many wrong ones.
    """
    recipe = spec.load(name).recipe
    samples = recipe.prepare(table)
    rng = np.random.default_rng(1)
    if name == "tracknet":
        model = recipe.model().eval()

        def extend(chunk: Table) -> None:
            with torch.no_grad():
                found = model(to_batch(chunk, recipe.columns))
            recipe.reconstruct(chunk, {key: value.numpy() for key, value in found.items()})

        return rate(extend, samples, repeat)
    label = samples.ragged("label")
    logits = label.share(label.values * 6.0 - 4 + rng.normal(0, 1.5, len(label.values)))
    samples = samples.join({"logit": logits})
    return rate(lambda chunk: recipe.reconstruct(chunk, {"output": chunk.ragged("logit").values}), samples, repeat)


class DenseGraphNet(nn.Module):
    """The same network on padded batches: (events, nodes, features), incidence (events, nodes, edges), bmm."""

    def __init__(self, like: GraphNet) -> None:
        super().__init__()
        self.embed, self.hidden, self.score, self.node = like.embed, like.edge_hidden, like.edge_score, like.node
        self.iterations = like.iterations

    def forward(self, features: Tensor, into: Tensor, out_of: Tensor) -> Tensor:
        state = torch.cat([self.embed(features), features], dim=2)
        for _ in range(self.iterations):
            gate = torch.sigmoid(self._edges(state, into, out_of))
            first, second = torch.bmm(out_of.transpose(1, 2), state), torch.bmm(into.transpose(1, 2), state)
            weighted_in, weighted_out = into * gate.transpose(1, 2), out_of * gate.transpose(1, 2)
            arriving, leaving = torch.bmm(weighted_in, first), torch.bmm(weighted_out, second)
            state = torch.cat([self.node(torch.cat([arriving, leaving, state], dim=2)), features], dim=2)
        return self._edges(state, into, out_of).squeeze(2)

    def _edges(self, state: Tensor, into: Tensor, out_of: Tensor) -> Tensor:
        first, second = torch.bmm(out_of.transpose(1, 2), state), torch.bmm(into.transpose(1, 2), state)
        scores: Tensor = self.score(torch.tanh(self.hidden(torch.cat([first, second], dim=2))))
        return scores


def padded(samples: Table) -> tuple[Tensor, ...]:
    """Features, incidences inwards and outwards, labels and a mask of real edges, each as large as the largest."""
    node, edge, label = (samples.ragged(name) for name in ("node", "edge", "label"))
    size, nodes, edges = len(samples), int(node.lengths.max()), int(edge.lengths.max())
    features, mask = torch.zeros(size, nodes, 5), torch.zeros(size, edges)
    into, out_of, labels = torch.zeros(size, nodes, edges), torch.zeros(size, nodes, edges), torch.zeros(size, edges)
    for event in range(size):
        pairs = torch.from_numpy(edge[event].astype(np.int64))
        numbers = torch.arange(len(pairs))
        features[event, : len(node[event])] = torch.from_numpy(node[event])
        out_of[event, pairs[:, 0], numbers] = 1
        into[event, pairs[:, 1], numbers] = 1
        labels[event, : len(pairs)] = torch.from_numpy(label[event].astype(np.float32))
        mask[event, : len(pairs)] = 1
    return features, into, out_of, labels, mask


def batches(samples: Table, size: int, *, alike: bool) -> Iterator[Table]:
    """All events once, at random or with those of similar size together."""
    order = np.random.default_rng(2).permutation(len(samples))
    order = np.argsort(samples.ragged("edge").lengths, kind="stable") if alike else order
    for first in range(0, len(order) - size + 1, size):
        yield samples.take(order[first : first + size])


def same_scores(samples: Table) -> float:
    """The largest difference between our scores and the rival's, over a few events."""
    torch.manual_seed(0)
    ours = GraphNet()
    few = samples.slice(0, 16)
    features, into, out_of, _, mask = padded(few)
    with torch.no_grad():
        dense = DenseGraphNet(ours)(features, into, out_of)[mask > 0]
        return float((dense - ours(to_batch(few, ("node", "edge", "label")))).abs().max())


def train_once(kind: str, samples: Table) -> tuple[float, float]:
    """Events per second and the growth of resident memory (MB) of one pass, making of batches included."""
    torch.manual_seed(0)
    ours = GraphNet()
    model: nn.Module = ours if kind == "ragged" else DenseGraphNet(ours)
    optimizer = torch.optim.Adam(model.parameters(), 5e-4)

    def ragged(chosen: Table) -> Tensor:
        batch: Batch = to_batch(chosen, ("node", "edge", "label"))
        loss = edge_loss(model(batch), batch, 2.3, 0.555)
        return loss.total / loss.weight

    def dense(chosen: Table) -> Tensor:
        features, into, out_of, labels, mask = padded(chosen)
        weight = torch.where(labels > 0, 2.3, 0.555) * mask
        logits = model(features, into, out_of)
        return nn.functional.binary_cross_entropy_with_logits(logits, labels, weight, reduction="sum") / mask.sum()

    step = ragged if kind == "ragged" else dense

    def learn(chosen: Table) -> None:
        optimizer.zero_grad()
        step(chosen).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    wanted = list(batches(samples, BATCH, alike=kind == "sorted"))
    Path("/proc/self/clear_refs").write_text("5")  # the peak of memory is counted from here
    before = _resident("VmRSS")
    learn(wanted[0])
    begun = time.perf_counter()
    for chosen in wanted:
        learn(chosen)
    return BATCH * len(wanted) / (time.perf_counter() - begun), _resident("VmHWM") - before


def _resident(field: str) -> float:
    """Resident memory of this process now (VmRSS) or at its peak (VmHWM), MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(field))) / 1e3


def trained(kind: str, count: int) -> tuple[float, float]:
    """`train_once` in a process of its own, so that peaks of memory do not mix."""
    command = [sys.executable, __file__, "--train", kind, "--events", str(count)]
    ended = subprocess.run(command, check=True, capture_output=True, text=True)
    speed, memory = json.loads(ended.stdout.splitlines()[-1])
    return speed, memory


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer events and repetitions")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--train", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--events", type=int, default=512, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tracking = spec.load("tracking").recipe
    if arguments.train:
        samples = tracking.prepare(events(arguments.events, tracking))
        print(json.dumps(train_once(arguments.train, samples.filter(samples.ragged("edge").lengths <= LARGEST))))
        return 0
    bars = measured(tracking, quick=arguments.quick)
    conditions = {"chunk": CHUNK, "batch": BATCH, "threads": 1, "environment": capture()}
    if arguments.json:
        arguments.json.write_text(json.dumps({"bars": bars, "conditions": conditions}, indent=1) + "\n")
    return int(not all(bar["ok"] for bar in bars))


def measured(tracking: Recipe, *, quick: bool) -> list[dict[str, Any]]:
    bars: list[dict[str, Any]] = []

    def bar(name: str, value: float, limit: float, unit: str, *, lower: bool = False) -> None:
        ok = value <= limit if lower else value >= limit
        bars.append({"name": name, "value": value, "bar": limit, "unit": unit, "ok": ok})
        sign = "<=" if lower else ">="
        print(f"{name:52} {value:12,.3f} {unit:18} {sign} {limit:<8,g} {'ok' if ok else 'MISSED'}", flush=True)

    table, repeat = events(2 * CHUNK if quick else 8 * CHUNK, tracking), 2 if quick else 7
    for name, title, limit in (
        ("tracking", "segment graphs, builder alone", 8000),
        ("hitgraph", "hit graphs", HIT_GRAPHS),
        ("tracknet", "sequences", SEQUENCES),
    ):
        bar(title, rate(_builder(name), table, repeat), limit, "events/CPU-second")
    for name, title in (
        ("tracking", "tracks from segment graphs"),
        ("hitgraph", "tracks from hit graphs"),
        ("tracknet", "tracks from ellipses, with the network"),
    ):
        bar(title, building(name, table, repeat), 1000, "events/CPU-second")
    samples = tracking.prepare(table)
    bar("rival's scores differ from ours by", same_scores(samples), 1e-4, "", lower=True)
    pairs = [[trained(kind, 128 if quick else 512) for kind in KINDS] for _ in range(1 if quick else 3)]
    for place, kind in enumerate(KINDS):
        speed, memory = (statistics.median(each[place][what] for each in pairs) for what in (0, 1))
        print(f"{f'training, {kind}':52} {speed:12,.1f} events/s, {memory:,.0f} MB above what was there")
    bar("training, ragged against dense", statistics.median(p[0][0] / p[1][0] for p in pairs), 5, "times the events/s")
    memory = statistics.median(p[0][1] / p[1][1] for p in pairs)
    bar("training, memory of ragged against dense", memory, 0.1, "of the peak", lower=True)
    bar("training, ragged against sorted dense", statistics.median(p[0][0] / p[2][0] for p in pairs), 1, "times")
    return bars


def _builder(name: str) -> Callable[[Table], Table]:
    from clew.recipes.tracking import hitgraph, segments, sequences

    config: Any = spec.load(name).recipe.config
    if name == "tracking":
        return lambda chunk: segments.build(chunk, config.detector, config.segments)
    if name == "hitgraph":
        return lambda chunk: hitgraph.build(chunk, config.detector, config.edges)
    return lambda chunk: sequences.build(chunk, config.detector, config.seeds)


HIT_GRAPHS, SEQUENCES = 40_000.0, 30_000.0
"""Not asked for by anyone: four fifths of what was measured first, to notice when they become slower."""

if __name__ == "__main__":
    sys.exit(main())
