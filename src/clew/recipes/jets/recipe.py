"""The recipe `jets`: a jet as the sequence of its constituents; a GRU, a convolution or a transformer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from clew import Ragged, Table
from clew.data.transforms import Compute
from clew.errors import ConfigError
from clew.recipes.jets import inputs
from clew.recipes.jets.base import Tagger
from clew.recipes.jets.settings import Constituents, SequenceSettings

if TYPE_CHECKING:
    from torch import nn

    from clew import Batch


class Jets(Tagger):
    """Jet tagging by constituents."""

    Config = SequenceSettings
    defaults = {
        "train": {
            "epochs": 20,
            "batch_size": 128,
            "optimizer": {"lr": 2e-3, "lr_batch": 128},
            "schedule": {"name": "cosine", "warmup": 0.05},
            "clip": 1.0,
            "loading": {"bucket": "constituents"},
        }
    }
    columns = ("constituents", inputs.LABEL)

    def inputs(self) -> Sequence[str]:
        own = self.config.constituents
        return [*own.inputs, *([own.order] if own.order else [])]

    def prepare(self, events: Table) -> Table:
        return inputs.sample(events, self.config.data, {"constituents": sequences(events, self.config.constituents)})

    def model(self) -> nn.Module:
        from clew.recipes.jets import network

        settings, own = self.config.model, len(self.config.constituents.inputs)
        made: nn.Module = network.SEQUENCES[settings.kind](own, len(self.config.data.classes), settings)
        return made

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        from clew.recipes.jets.network import padded

        return model(*padded(batch.ragged("constituents")))


def sequences(events: Table, settings: Constituents) -> Ragged:
    """The inputs of constituents (items, inputs), in order, no more than the most that are wanted.

    Raises:
        ConfigError: the inputs are not of constituents.
    """
    found = inputs.stacked(events, settings.inputs)
    if not isinstance(found, Ragged):
        raise ConfigError("constituents.inputs: one value a jet; for those there is the recipe jetfeatures")
    event, rows = found.events, np.arange(len(found.values))
    if settings.order:
        by = Compute(column="order", expression=settings.order)(events)["order"]
        if not isinstance(by, Ragged) or by.offsets is not found.offsets:
            raise ConfigError(f"constituents.order: '{settings.order}' has not one value a constituent")
        rows = np.lexsort((-by.values.astype(np.float64), event))
    kept = np.arange(len(rows)) - found.offsets[event] < settings.most
    return Ragged.from_lengths(found.values[rows[kept]], np.minimum(found.lengths, settings.most))
