"""The recipe `lartpc`: identify the particle in an image of wires and ticks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clew import Recipe, Table, figure
from clew.data.transforms import Transform
from clew.metrics import Metric
from clew.recipes.lartpc import display, event_files, images
from clew.recipes.lartpc import metrics as image_metrics
from clew.recipes.lartpc.columns import CHARGE, CLASSES, ENERGY, EVENT, INDEX, LABEL
from clew.recipes.lartpc.generate import events as generator
from clew.recipes.lartpc.settings import LArTPCConfig, LArTPCNetworkConfig

if TYPE_CHECKING:
    from torch import Tensor, nn

    from clew import Batch
    from clew.recipe import TrainingHooks, TrainingPlan
    from clew.recipes.lartpc.augmentation import Augmentation


EVENT_COLUMNS = (EVENT, LABEL, ENERGY, "vertex")
"""Columns of samples other than pixels."""


class LArTPC(Recipe):
    """Identifies single particles in liquid argon from the pixels of one wire plane at full resolution."""

    Config = LArTPCConfig
    defaults = {
        "train": {
            "epochs": 10,
            "batch_size": 16,
            "optimizer": {"lr": 5e-4, "lr_batch": 16},
            "loading": {"keep": "compressed"},
            "best": {"metric": "accuracy"},
        }
    }
    columns = (INDEX, CHARGE, LABEL)
    events_per_file = generator.EVENTS_PER_FILE

    def read(self, path: str) -> Iterable[Table]:
        """Read generated events, frames (tar), deposits (zip), HDF5 of images, or tables with the same columns."""
        return event_files.read_events(path, self.config.image.size, self.config.readout)

    def transforms(self) -> Sequence[Transform]:
        return tuple(self.config.transforms)

    def label_columns(self) -> Sequence[str]:
        return (LABEL, ENERGY)

    def generate(self, events: int, seed: int, folder: Path, first: int = 0) -> Iterator[tuple[Path, int]]:
        """Generate single particles in liquid argon."""
        settings = self.config
        yield from generator.write_events(
            events,
            seed,
            folder,
            first=first,
            config=settings.generator,
            readout=settings.readout,
            size=settings.image.size,
        )

    def prepare(self, events: Table) -> Table:
        """Check the pixels of each event, and shrink the images.

        Raises:
            DataError: An event is not a valid image.
        """
        image = self.config.image
        checked = images.check_images(events, image.size, max_pixels=image.max_pixels)
        events = images.shrink_images(checked, image.size, image.shrink, output_size=image.network_size)
        fixed = {name: events.fixed(name) for name in EVENT_COLUMNS if name in events}
        return Table({**fixed, INDEX: events.ragged(INDEX), CHARGE: events.ragged(CHARGE)})

    def model(self) -> nn.Module:
        from clew.recipes.lartpc.network import WireImageNet

        (height, width), settings = self.config.image.network_size, self.config.model
        return WireImageNet(height, width, settings.kind, dropout=settings.dropout, augmentation=self.augmentation())

    def augmentation(self) -> Augmentation | None:
        """Return what changes the images in training, for the network; None if it is not enabled."""
        from clew.recipes.lartpc.augmentation import Augmentation

        if not self.config.augment.enabled:
            return None
        image = self.config.image
        return Augmentation(self.config.augment, image.shrunk_size, image.network_size[1])

    def hooks(self, model: nn.Module, plan: TrainingPlan) -> TrainingHooks:
        """Return the hooks that set the random numbers of the augmentation.

        Raises:
            ConfigError: Augmentation is enabled, and the network of a recipe that extends this one has none.
        """
        if not self.config.augment.enabled:
            return super().hooks(model, plan)
        from clew.recipes.lartpc import augmentation

        if not isinstance(self.config.model, LArTPCNetworkConfig):
            augmentation.check_augmented(model)
        return augmentation.AugmentationHooks(model, plan)

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        index = batch.ragged(INDEX)
        return model(index.values, batch[CHARGE] / self.config.model.unit, index.offsets)

    def graph_capacity(self, batch: Batch, precision: str) -> Mapping[str, int] | None:
        """Return the capacity in pixels for the kernels on cells, which count on the device."""
        if not isinstance(self.config.model, LArTPCNetworkConfig):  # the network of a recipe that extends this one
            return None
        if self.config.model.kind != "cells" or precision != "bf16" or find_spec("triton") is None:
            return None
        return dict.fromkeys((INDEX, CHARGE), batch.capacity_for(len(batch[INDEX]), bits=4))

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the cross-entropy of every event. Labels are smoothed in training only, where there are gradients."""
        from torch.nn.functional import cross_entropy

        smoothing = self.config.loss.label_smoothing if outputs.requires_grad else 0.0
        return cross_entropy(outputs, batch[LABEL], reduction="none", label_smoothing=smoothing)

    def reconstruct(self, samples: Table, outputs: Mapping[str, Any]) -> Table:
        """Return `score_CLASS` of each class: its predicted probability. The scores of an event add up to 1."""
        scores = image_metrics.softmax(outputs["output"])
        return Table({f"score_{name}": scores[:, place] for place, name in enumerate(CLASSES)})

    def metrics(self, samples: Table, outputs: Mapping[str, Any], objects: Table) -> Mapping[str, Metric]:
        return image_metrics.make_metrics(samples, outputs["output"], self.config.metrics.energy_edges)

    def sample_plots(self, samples: Table) -> Mapping[str, figure.Figure]:
        return {"events": display.event_displays(samples, self.config.image.network_size)}

    def display(self, samples: Table, outputs: Mapping[str, Any], objects: Table) -> Mapping[str, figure.Figure]:
        return self.sample_plots(samples)
