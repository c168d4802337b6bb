"""How fast hits become graphs, sequences and tracks, and what ragged batches save in training.

Synthetic BES-III-like events (mean 56 hits, 4 tracks), 500 at a time, one core. The rival in training is the GraphNet
on dense padded batches as it was published: incidence matrices (events, nodes, edges), batched matrix products, every
event padded to the largest of its batch. Same parameters, same events in the same batches, one process each in turn;
the rival's scores are compared with ours first. A second rival gets events of similar size together, which helps it.
The largest events (see LARGEST) are left out of the comparison, which helps both rivals.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _contest import Sheet, main, options
from torch import Tensor, nn

from clew import Batch, Ragged, Table, settings
from clew.data.dataset.batch import to_batch
from clew.recipe import Recipe
from clew.recipes.tracking.network import GraphNet, edge_loss
from clew.recipes.tracking.simulate_bes3 import simulate

CHUNK = 500
KINDS = ("ragged", "dense", "sorted")
BATCH = 32
"""The recipe's own; with the published 128 the rival was killed for memory on a machine of 23 GB."""
LARGEST = 1000
"""Edges: events with more are left out of the comparison in training, in the rival's favour and for the same reason."""
BUILDERS = {
    "tracking": ("segment graphs, builder alone", 8000),
    "hitgraph": ("hit graphs", 40_000),
    "tracknet": ("sequences", 30_000),
}
"""Least events per CPU-second. The last two are not requirements: four fifths of the first measurement, to notice when
they become slower."""


def events(count: int, recipe: Recipe) -> Table:
    """Generated events after the recipe's transforms."""
    hits = simulate(count, 1)
    x = Ragged.from_lengths(hits.x, np.bincount(hits.event, minlength=count))
    rest = {name: x.share(getattr(hits, name)) for name in ("y", "z", "station", "track")}
    table = Table({"event": np.arange(count), "x": x, **rest})
    for transform in recipe.transforms():
        table = transform(table)
    return table


def rate(work: Callable[[Table], Any], table: Table, repeat: int) -> float:
    """Events per CPU-second, in chunks; the median of some passes after one that does not count."""
    chunks = [table.slice(first, first + CHUNK) for first in range(0, len(table), CHUNK)]
    times = []
    for _ in range(repeat + 1):
        start = time.process_time()
        for chunk in chunks:
            work(chunk)
        times.append(time.process_time() - start)
    return len(table) / statistics.median(times[1:])


def building(name: str, table: Table, repeat: int) -> float:
    """Events per CPU-second from outputs to tracks; for TrackNET with the network, which extends the seeds itself.

    Scores are the truth with noise: as many tracks as a trained network gives, and as many wrong ones.
    """
    recipe = settings.load_settings(name).recipe
    samples = recipe.prepare(table)
    rng = np.random.default_rng(1)
    if name == "tracknet":
        model = recipe.model().eval()

        def extend(chunk: Table) -> None:
            with torch.no_grad():
                output = model(to_batch(chunk, recipe.columns))
            recipe.reconstruct(chunk, {key: value.numpy() for key, value in output.items()})

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
    first_events = samples.slice(0, 16)
    features, into, out_of, _, mask = padded(first_events)
    with torch.no_grad():
        dense = DenseGraphNet(ours)(features, into, out_of)[mask > 0]
        return float((dense - ours(to_batch(first_events, ("node", "edge", "label")))).abs().max())


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

    chosen_batches = list(batches(samples, BATCH, alike=kind == "sorted"))
    Path("/proc/self/clear_refs").write_text("5")  # the peak of memory is counted from here
    before = _resident("VmRSS")
    learn(chosen_batches[0])
    start = time.perf_counter()
    for chosen in chosen_batches:
        learn(chosen)
    return BATCH * len(chosen_batches) / (time.perf_counter() - start), _resident("VmHWM") - before


def _resident(field: str) -> float:
    """Resident memory of this process now (VmRSS) or at its peak (VmHWM), MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(field))) / 1e3


def trained(kind: str, count: int) -> tuple[float, float]:
    """`train_once` in a separate process, so that peaks of memory do not mix."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as alone:
        return alone.submit(train_alone, kind, count).result()


def train_alone(kind: str, count: int) -> tuple[float, float]:
    torch.set_num_threads(1)
    recipe = settings.load_settings("tracking").recipe
    samples = recipe.prepare(events(count, recipe))
    return train_once(kind, samples.filter(samples.ragged("edge").lengths <= LARGEST))


def builders(sheet: Sheet, table: Table, repeat: int) -> None:
    """From hits to samples, and from outputs to tracks."""
    for name, (title, limit) in BUILDERS.items():
        sheet.bar(title, rate(_builder(name), table, repeat), limit, "events/CPU-second")
    for name, title in (
        ("tracking", "tracks from segment graphs"),
        ("hitgraph", "tracks from hit graphs"),
        ("tracknet", "tracks from ellipses, with the network"),
    ):
        sheet.bar(title, building(name, table, repeat), 1000, "events/CPU-second")


def training(sheet: Sheet, samples: Table, *, quick: bool) -> None:
    """Ragged batches against dense ones: speed, and additional memory."""
    sheet.bar("rival's scores differ from ours by", same_scores(samples), 1e-4, "", lower=True)
    runs = [{kind: trained(kind, 128 if quick else 512) for kind in KINDS} for _ in range(1 if quick else 3)]
    for kind in KINDS:
        speed, memory = (statistics.median(run[kind][what] for run in runs) for what in (0, 1))
        sheet.state(f"training, {kind}", speed, "events/s")
        sheet.state(f"training, {kind}: memory above what was there", memory, "MB")

    def ratio(rival: str, what: int) -> float:
        return statistics.median(run["ragged"][what] / run[rival][what] for run in runs)

    sheet.bar("training, ragged against dense", ratio("dense", 0), 5, "times the events/s")
    sheet.bar("training, memory of ragged against dense", ratio("dense", 1), 0.1, "of the peak", lower=True)
    sheet.bar("training, ragged against sorted dense", ratio("sorted", 0), 1, "times the events/s")


def _builder(name: str) -> Callable[[Table], Table]:
    from clew.recipes.tracking import hitgraph, segments, sequences

    config: Any = settings.load_settings(name).recipe.config
    if name == "tracking":
        return lambda chunk: segments.build(chunk, config.detector, config.segments)
    if name == "hitgraph":
        return lambda chunk: hitgraph.build(chunk, config.detector, config.edges)
    return lambda chunk: sequences.build(chunk, config.detector, config.seeds)


def measure(sheet: Sheet, folder: Path, arguments: argparse.Namespace) -> Mapping[str, Any]:
    torch.set_num_threads(1)
    recipe, quick = settings.load_settings("tracking").recipe, arguments.quick
    table = events(2 * CHUNK if quick else 8 * CHUNK, recipe)
    builders(sheet, table, 2 if quick else 7)
    training(sheet, recipe.prepare(table), quick=quick)
    return {"chunk": CHUNK, "batch": BATCH, "threads": 1}


if __name__ == "__main__":
    sys.exit(main(measure, options(__doc__)))
