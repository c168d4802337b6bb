"""The recipe `tagger`: tells jets of a boosted W boson (two prongs) from jets of a quark or gluon (one prong).

This file is an example to read from top to bottom. It holds everything a recipe can have, and it makes its own data:

    clew data generate tagger --events 4000 --output events
    clew prepare tagger --input events --output dataset
    clew train tagger --dataset dataset
    clew evaluate runs/tagger-001

A network of 4,993 parameters learns the task in half a minute on one core.
Copy this file with `clew init my_tagger --like tagger`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from clew import Ragged, Recipe, Section, Table, figure, metrics

# torch is imported inside the methods that need it: `clew prepare` never loads it and starts three seconds earlier.
if TYPE_CHECKING:
    from torch import Tensor, nn

    from clew import Batch


# 1. Settings. Every field is a setting: a line in a YAML file, or `--set network.hidden=64` on the command line.


class JetSample(Section):
    """The synthetic jets that `clew data generate` makes."""

    constituents: float = 25.0
    """Average number of constituents per jet."""
    prong_distance: float = 0.5
    """Distance in (eta, phi) between the two prongs of a W jet."""
    prong_width: float = 0.1
    """Spread of the constituents around the axis of their prong."""


class DeepSet(Section):
    """The network: one network for every constituent, a sum over each jet, and one network for the jet."""

    hidden: int = 48
    """Width of the layers."""


class TaggerConfig(Section):
    """All settings of the recipe."""

    sample: JetSample = JetSample()
    network: DeepSet = DeepSet()


class JetTagger(Recipe):
    """Tells jets with two prongs from jets with one."""

    Config = TaggerConfig
    defaults = {"train": {"epochs": 10, "batch_size": 64, "optimizer": {"lr": 3e-3}, "schedule": {"name": "cosine"}}}
    columns = ("constituents", "signal")  # these columns of the samples become tensors; the others stay on disk
    events_per_file = 1000

    # 2. Data: synthetic events, and how events become samples. NumPy only, a whole chunk of events at once.

    def generate(self, events: int, seed: int, folder: Path, first: int = 0) -> Iterator[tuple[Path, int]]:
        """Write HDF5 files of up to 1000 jets. The random numbers of a file depend on its number: any order will do."""
        for start in range(first, first + events, self.events_per_file):
            count, number = min(self.events_per_file, first + events - start), start // self.events_per_file
            path = folder / f"synthetic-jets-seed{seed}-{number:05d}.h5"
            generate_jets(count, np.random.default_rng([seed, number]), self.config.sample).save(path)
            yield path, count

    def label_columns(self) -> Sequence[str]:
        """The columns that only the loss and the metrics need: `clew predict` takes events without them."""
        return ("signal",)

    def prepare(self, events: Table) -> Table:
        """Events to samples: of each constituent its share of the jet's pT, its direction, its distance to the axis."""
        pt = events.ragged("part_pt")  # ragged: every jet has its own number of constituents
        eta, phi = events.ragged("part_eta").values, events.ragged("part_phi").values
        share = pt.values / events.fixed("jet_pt")[pt.events]
        inputs = np.stack([np.log(share) + 4.0, 5 * eta, 5 * phi, 5 * np.hypot(eta, phi)], axis=1)
        samples = Table({"constituents": pt.share(inputs.astype(np.float32)), "jet_pt": events.fixed("jet_pt")})
        return samples.join({"signal": events.fixed("signal")}) if "signal" in events else samples

    # 3. Model: the network, what it gets, and the loss. PyTorch tensors.

    def model(self) -> nn.Module:
        """A fresh network."""
        from torch import nn

        hidden = self.config.network.hidden
        constituent = nn.Sequential(nn.Linear(4, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU())
        jet = nn.Sequential(nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, 1))
        return nn.ModuleDict({"constituent": constituent, "jet": jet})

    def forward(self, model: Any, batch: Batch) -> Tensor:
        """One logit per jet, from tensors (jets, most constituents, inputs) and a mask of the real constituents."""
        constituents, mask = batch.ragged("constituents").padded()
        embedded = model["constituent"](constituents) * mask.unsqueeze(2)
        logits: Tensor = model["jet"](embedded.sum(dim=1) / 10).squeeze(1)
        return logits

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Cross-entropy, one value per jet: clew applies event weights and averages over all processes."""
        from torch.nn.functional import binary_cross_entropy_with_logits

        return binary_cross_entropy_with_logits(outputs, batch["signal"].float(), reduction="none")

    # 4. Results: what `clew predict` writes, the metrics, and the plots of the report. NumPy arrays.

    def reconstruct(self, samples: Table, outputs: Mapping[str, Any]) -> Table:
        """`score`: the probability that the jet is signal."""
        return Table({"score": 1 / (1 + np.exp(-outputs["output"].astype(np.float64)))})

    def metrics(self, samples: Table, outputs: Mapping[str, Any], objects: Table) -> Mapping[str, metrics.Metric]:
        """Metrics are sums and counts of a batch; clew adds them over batches and processes."""
        score, signal, weights = objects.fixed("score"), samples.fixed("signal") > 0, samples.weights
        pt, tagged = samples.fixed("jet_pt")[signal], score[signal] > 0.5
        edges, axis, label = np.linspace(300, 600, 7), "jet pT [GeV]", "signal efficiency"
        return {
            "accuracy": metrics.Ratio.of((score > 0.5) == signal, weights),
            "auc": metrics.Roc.of(score, signal, weights),  # the report shows the ROC curve
            "efficiency_pt": metrics.Binned.of(pt, tagged, edges, axis=axis, label=label, weights=weights[signal]),
        }

    def display(self, samples: Table, outputs: Mapping[str, Any], objects: Table) -> Mapping[str, figure.Figure]:
        """Plots of single jets for the report: the area of a point is the constituent's pT."""
        figures = {}
        for jet, (inputs, score) in enumerate(zip(samples.ragged("constituents"), objects.fixed("score"), strict=True)):
            size = {"size": figure.plain(40 * np.sqrt(np.exp(inputs[:, 0] - 4.0)))}
            points = figure.points(inputs[:, 1] / 5, inputs[:, 2] / 5, "constituents", marker=size)
            title = f"{'signal' if samples.fixed('signal')[jet] else 'background'} jet with score {score:.2f}"
            figures[f"jet_{jet}"] = figure.figure([points], title=title, x="eta", y="phi")
        return figures


def generate_jets(count: int, random: np.random.Generator, sample: JetSample) -> Table:
    """Synthetic jets, half of them signal: constituents around two prongs (signal) or around one (background)."""
    signal = random.integers(0, 2, count)
    lengths = 2 + random.poisson(sample.constituents, count)
    jet = np.repeat(np.arange(count), lengths)  # the jet that each constituent belongs to
    direction, share = random.uniform(0, 2 * np.pi, count), random.uniform(0.3, 0.7, count)
    side = np.where(random.random(len(jet)) < share[jet], 1 - share[jet], -share[jet])  # which prong, from the axis
    radius = np.where(signal[jet] > 0, side * sample.prong_distance, 0.0)
    spread = random.normal(0, sample.prong_width * np.where(signal[jet] > 0, 1.0, 1.6), (2, len(jet)))
    pt = random.exponential(1.0, len(jet)) + 0.02
    jet_pt = random.uniform(300, 600, count)  # in GeV
    pt *= (jet_pt / np.bincount(jet, pt))[jet]
    columns = {
        "part_pt": pt,
        "part_eta": radius * np.cos(direction[jet]) + spread[0],
        "part_phi": radius * np.sin(direction[jet]) + spread[1],
    }
    ragged = {name: Ragged.from_lengths(values, lengths) for name, values in columns.items()}
    return Table({**ragged, "jet_pt": jet_pt, "signal": signal}, units={"part_pt": "GeV", "jet_pt": "GeV"})
