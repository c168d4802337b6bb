"""The recipe `jets`: a jet is the sequence of its constituents; the network is a GRU, a convolution, a transformer,
edge convolutions or ParticleNet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from clew import Ragged, Table
from clew.data.transforms import Compute
from clew.errors import ConfigError
from clew.recipes.jets import inputs
from clew.recipes.jets.settings import ConstituentsConfig, JetsConfig
from clew.recipes.jets.tagging_recipe import JetTaggingRecipe

if TYPE_CHECKING:
    from torch import nn

    from clew import Batch


class Jets(JetTaggingRecipe):
    """Jet tagging from constituents."""

    Config = JetsConfig
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
        config = self.config.constituents
        return [*config.inputs, *([config.order] if config.order else [])]

    def prepare(self, events: Table) -> Table:
        return inputs.make_samples(
            events, self.config.data, {"constituents": sequences(events, self.config.constituents)}
        )

    def model(self) -> nn.Module:
        from clew.recipes.jets import network

        settings, inputs = self.config.model, len(self.config.constituents.inputs)
        network_model: nn.Module = network.SEQUENCE_NETWORKS[settings.kind](
            inputs, len(self.config.data.classes), settings
        )
        return network_model

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        from clew.recipes.jets.network import padded

        return model(*padded(batch.ragged("constituents")))


def sequences(events: Table, settings: ConstituentsConfig) -> Ragged:
    """The inputs of constituents (items, inputs), sorted, at most `settings.max_constituents` per jet.

    Raises:
        ConfigError: The inputs have one value per jet, not one per constituent.
    """
    values = inputs.stack_inputs(events, settings.inputs)
    if not isinstance(values, Ragged):
        raise ConfigError("constituents.inputs: one value per jet; use the recipe jetfeatures for such inputs")
    event, rows = values.events, np.arange(len(values.values))
    if settings.order:
        order = Compute(column="order", expression=settings.order)(events)["order"]
        if not isinstance(order, Ragged) or order.offsets is not values.offsets:
            raise ConfigError(f"constituents.order: '{settings.order}' does not have one value per constituent")
        rows = np.lexsort((-order.values.astype(np.float64), event))
    selected = np.arange(len(rows)) - values.offsets[event] < settings.max_constituents
    return Ragged.from_lengths(values.values[rows[selected]], np.minimum(values.lengths, settings.max_constituents))
