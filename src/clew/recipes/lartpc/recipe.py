"""The recipe `lartpc`: which particle made an image of wires and ticks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clew import Recipe, Table, figure
from clew.data.transforms import Transform
from clew.metrics import Metric
from clew.recipes.lartpc import display, images, reading
from clew.recipes.lartpc import metrics as judging
from clew.recipes.lartpc.columns import CHARGE, CLASSES, ENERGY, EVENT, INDEX, LABEL
from clew.recipes.lartpc.generate import events as generator
from clew.recipes.lartpc.settings import Settings

if TYPE_CHECKING:
    from torch import Tensor, nn

    from clew import Batch


KEPT = (EVENT, LABEL, ENERGY, "vertex")
"""Columns that samples keep besides pixels."""


class LArTPC(Recipe):
    """Single particles in liquid argon, told by the pixels of one plane at full resolution."""

    Config = Settings
    defaults = {
        "train": {
            "epochs": 10,
            "batch_size": 16,
            "optimizer": {"lr": 5e-4, "lr_batch": 16},
            "loading": {"keep": "compressed"},
        }
    }
    columns = (INDEX, CHARGE, LABEL)
    events_per_file = generator.EVENTS_A_FILE

    def read(self, path: str) -> Iterable[Table]:
        """Events of the generator, frames (tar), deposits (zip), HDF5 of images, or tables with the same columns."""
        return reading.read(path, self.config.image.size, self.config.readout)

    def transforms(self) -> Sequence[Transform]:
        return tuple(self.config.transforms)

    def label_columns(self) -> Sequence[str]:
        return (LABEL, ENERGY)

    def generate(self, events: int, seed: int, folder: Path, first: int = 0) -> Iterator[tuple[Path, int]]:
        """Single particles in liquid argon."""
        settings = self.config
        yield from generator.write(
            events,
            seed,
            folder,
            first=first,
            config=settings.generator,
            readout=settings.readout,
            size=settings.image.size,
        )

    def prepare(self, events: Table) -> Table:
        """The pixels of each event, checked.

        Raises:
            DataError: an event cannot be one of these images.
        """
        image = self.config.image
        whole = images.checked(events, image.size, most=image.most)
        events = images.shrunk(whole, image.size, image.shrink, within=image.seen)
        kept = {name: events.fixed(name) for name in KEPT if name in events}
        return Table({**kept, INDEX: events.ragged(INDEX), CHARGE: events.ragged(CHARGE)})

    def model(self) -> nn.Module:
        from clew.recipes.lartpc.network import ParticleNet

        height, width = self.config.image.seen
        return ParticleNet(height, width, self.config.model.kind)

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        index = batch.ragged(INDEX)
        return model(index.values, batch[CHARGE] / self.config.model.unit, index.offsets)

    def graph_capacity(self, batch: Batch, precision: str) -> Mapping[str, int] | None:
        """For the kernels on cells, which count on the device."""
        if self.config.model.kind != "cells" or precision != "bf16" or find_spec("triton") is None:
            return None
        return dict.fromkeys((INDEX, CHARGE), batch.capacity_for(len(batch[INDEX]), bits=4))

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Cross-entropy of every event."""
        from torch.nn.functional import cross_entropy

        return cross_entropy(outputs, batch[LABEL], reduction="none")

    def reconstruct(self, samples: Table, outputs: Mapping[str, Any]) -> Table:
        """`score_CLASS` of each class: the probability that the network gives it; they add up to 1."""
        found = judging.scores(outputs["output"])
        return Table({f"score_{name}": found[:, place] for place, name in enumerate(CLASSES)})

    def metrics(self, samples: Table, outputs: Mapping[str, Any], objects: Table) -> Mapping[str, Metric]:
        return judging.tallies(samples, outputs["output"], self.config.judging.energy_edges)

    def sample_plots(self, samples: Table) -> Mapping[str, figure.Figure]:
        return {"events": display.events(samples, self.config.image.seen)}

    def display(self, samples: Table, outputs: Mapping[str, Any], objects: Table) -> Mapping[str, figure.Figure]:
        return self.sample_plots(samples)
