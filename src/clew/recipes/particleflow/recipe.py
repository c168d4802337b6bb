"""The recipe `particleflow`: reconstruct particles from calorimeter towers and tracks."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from clew import Loss, Ragged, Recipe, Table, figure
from clew.metrics import Metric
from clew.recipes.particleflow import display, event_files, jet_metrics
from clew.recipes.particleflow import metrics as flow_metrics
from clew.recipes.particleflow.columns import ELEMENTS, GEN_MET, NONE, PROCESS, TARGETS, TOWER
from clew.recipes.particleflow.generator import EVENTS_PER_FILE, write_events
from clew.recipes.particleflow.links import LINK_FEATURES, link_features
from clew.recipes.particleflow.rule_based import measured_towers, measured_tracks
from clew.recipes.particleflow.settings import ParticleFlowConfig, ParticleFlowNetworkConfig

if TYPE_CHECKING:
    from torch import Tensor, nn

    from clew import Batch, Dataset


class ParticleFlow(Recipe):
    """Predicts for every element the class, charge and momentum of its particle, or that it has none."""

    Config = ParticleFlowConfig
    defaults = {
        "train": {
            "epochs": 20,
            "batch_size": 4,
            "optimizer": {"lr": 1e-4, "lr_batch": 4},
            "schedule": {"name": "cosine", "warmup": 0.05},
            "clip": 1.0,
        }
    }
    columns = (ELEMENTS, TARGETS)
    events_per_file = EVENTS_PER_FILE
    inference_batch_size = 16
    _clustered: tuple[weakref.ref[Table] | None, Any] = (None, None)
    """The newest batch whose true jets are known, and these jets."""

    def read(self, path: str) -> Iterable[Table]:
        """Read generated events, the public Delphes set, EDM4hep of FCC or CMS PFNano: see `data.reader`."""
        return event_files.read_events(path, self.config.data)

    def generate(self, events: int, seed: int, folder: Path, first: int = 0) -> Iterator[tuple[Path, int]]:
        """Write events of `generator.kind` to HDF5 files.

        Raises:
            RecipeError: The settings need Pythia, which is not installed.
        """
        yield from write_events(events, seed, folder, first=first, config=self.config.generator)

    def label_columns(self) -> Sequence[str]:
        return (TARGETS,)

    def prepare(self, events: Table) -> Table:
        fixed = {name: events[name] for name in ("event", PROCESS, GEN_MET, "weight") if name in events}
        items = {name: events.ragged(name) for name in (ELEMENTS, TARGETS) if name in events}
        if self.config.data.links:
            elements = items[ELEMENTS]
            items[ELEMENTS] = elements.share(np.concatenate([elements.values, link_features(elements)], axis=1))
        return Table({**fixed, **{name: _to_float32(column) for name, column in items.items()}}, units=events.units)

    def model(self) -> nn.Module:
        from clew.recipes.particleflow import networks
        from clew.recipes.particleflow.decoding import ENCODED_WIDTH

        inputs = ENCODED_WIDTH + (len(LINK_FEATURES) if self.config.data.links else 0)
        network: nn.Module = networks.NETWORKS[self.config.model.kind](self.config.model, inputs)
        return network

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        elements = batch.ragged(ELEMENTS)
        if batch.has_capacity:
            return model(elements.values, elements.offsets, len(elements.values) // self.config.model.bin_size)
        return model(elements.values, elements.offsets)

    def graph_capacity(self, batch: Batch, precision: str) -> Mapping[str, int] | None:
        """Return the number of rows in whole bins, for the kernels of the graph network."""
        from clew.recipes.particleflow.graph_network import kernels_support

        settings = self.config.model
        if not isinstance(settings, ParticleFlowNetworkConfig):  # the network of a recipe that extends this one
            return None
        if settings.kind != "graph" or precision != "bf16" or not kernels_support(settings):
            return None
        lengths = batch.ragged(ELEMENTS).lengths
        bins = int(((lengths + settings.bin_size - 1) // settings.bin_size).sum())
        return dict.fromkeys((ELEMENTS, TARGETS), batch.capacity_for(bins, bits=6) * settings.bin_size)

    def loss(self, outputs: Any, batch: Batch) -> Loss:
        """Loss of class, charge and momentum: the mean over the elements of the batch."""
        from clew.recipes.particleflow.loss import flow_loss

        return flow_loss(outputs, batch, self.config.losses)

    def reconstruct(self, samples: Table, outputs: Mapping[str, Any]) -> Table:
        """Return `pid` (0: no particle), `charge`, `pt`, `eta`, `phi`, `energy` (GeV), one row per element."""
        elements = samples.ragged(ELEMENTS)
        pid = self._classes(elements.values, np.asarray(outputs["class"], dtype=np.float64))
        momenta = np.asarray(outputs["momentum"], dtype=np.float64)
        pt, energy = (np.maximum(np.expm1(np.minimum(momenta[:, place], 12.0)), 0.0) for place in (0, 4))
        columns: dict[str, Any] = {
            "pid": pid.astype(np.int8),
            "charge": np.rint(np.asarray(outputs["charge"])).clip(-1, 1).astype(np.int8) * (pid > 0),
            "pt": pt,
            "eta": momenta[:, 1],
            "phi": np.arctan2(momenta[:, 2], momenta[:, 3]),
            "energy": energy,
        }
        if self.config.reconstruction.track_momentum == "measured":
            columns |= measured_tracks(elements.values, columns)
        if self.config.reconstruction.tower_energy == "measured":
            columns |= measured_towers(elements, columns)
        units = {"pt": "GeV", "energy": "GeV", "phi": "rad"}
        return Table({name: elements.share(_floats_to_float32(value)) for name, value in columns.items()}, units=units)

    def _classes(self, elements: Any, logits: Any) -> Any:
        """Return the class of each element; see `ReconstructionConfig.min_none_probability`."""
        threshold = self.config.reconstruction.min_none_probability
        if not threshold:
            return logits.argmax(axis=1)
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        none = weights[:, NONE] / weights.sum(axis=1)
        particle = np.where(np.arange(logits.shape[1]) == NONE, -np.inf, logits).argmax(axis=1)
        return np.where((elements[:, 0] == TOWER) & (none < threshold), particle, logits.argmax(axis=1))

    def metrics(self, samples: Table, outputs: Mapping[str, Any], objects: Table) -> Mapping[str, Metric]:
        return flow_metrics.make_metrics(samples, objects, self.config.metrics, self._true_jets(samples))

    def evaluation_metrics(self, samples: Table, outputs: Mapping[str, Any], objects: Table) -> Mapping[str, Metric]:
        """The metrics of rule-based particle flow, `rule/...`. They do not depend on the network."""
        settings = self.config.metrics
        if not settings.rule or ELEMENTS not in samples:
            return {}
        results = flow_metrics.rule_metrics(samples, settings, self._true_jets(samples))
        return {f"rule/{name}": metric for name, metric in results.items()}

    def _true_jets(self, samples: Table) -> Any:
        """Return the true jets of a batch. Network and rule are compared with the same ones, so they are kept once."""
        batch, jets = self._clustered
        if batch is None or batch() is not samples:
            truth, offsets = flow_metrics.true_particles(samples), samples.ragged(TARGETS).offsets
            jets = jet_metrics.cluster_true_jets(truth, offsets, self.config.metrics)
            self._clustered = (weakref.ref(samples), jets)
        return jets

    def display(self, samples: Table, outputs: Mapping[str, Any], objects: Table) -> Mapping[str, figure.Figure]:
        return display.event_displays(samples, objects)

    def benchmark_outputs(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        """The bin of every element (layers, stacks, elements), its class, and whether the class is correct."""
        elements = batch.ragged(ELEMENTS)
        classes = model(elements.values, elements.offsets)["class"].argmax(dim=1)
        outputs = {"class": classes, "correct": classes == batch[TARGETS][:, 0].long()}
        bins: Any = getattr(model, "bins", None)
        return outputs if bins is None else {"bin": bins(elements.values, elements.offsets), **outputs}

    def benchmark_facts(self, dataset: Dataset) -> Mapping[str, float]:
        """Elements per event, and shares of padding: in bins, and if all events were as long as the longest."""
        lengths = np.asarray(dataset.lengths("train", ELEMENTS), dtype=np.int64)
        size = self.config.model.bin_size
        padded = -(-lengths // size) * size
        return {
            "elements_per_event": float(lengths.mean()),
            "padding_share": float(1 - lengths.sum() / padded.sum()),
            "padding_share_of_rectangles": float(1 - lengths.sum() / (padded.max() * len(padded))),
        }


def _to_float32(column: Ragged) -> Ragged:
    return column.share(np.ascontiguousarray(column.values, dtype=np.float32))


def _floats_to_float32(values: Any) -> Any:
    return values.astype(np.float32) if values.dtype.kind == "f" else values
