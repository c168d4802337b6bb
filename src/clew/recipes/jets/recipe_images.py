"""The recipe `jetimages`: a jet as an image; convolutions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from clew import Table
from clew.recipes.jets import images, inputs
from clew.recipes.jets.base import Tagger
from clew.recipes.jets.settings import ImageSettings

if TYPE_CHECKING:
    from torch import nn

    from clew import Batch


class JetImages(Tagger):
    """Jet tagging by images: those of the file, or of the constituents' pT in eta and phi."""

    Config = ImageSettings
    defaults = {
        "train": {
            "epochs": 30,
            "batch_size": 128,
            "optimizer": {"name": "adamw", "lr": 3e-3, "weight_decay": 0.01, "lr_batch": 128},
            "schedule": {"name": "cosine", "warmup": 0.1},
        }
    }
    columns = ("image", inputs.LABEL)

    def inputs(self) -> Sequence[str]:
        return ("image",) if self.config.data.images else images.NEEDS

    def passthrough_columns(self) -> Mapping[str, Sequence[str]]:
        return {"image": ("image",)} if self.config.data.images else {}

    def prepare(self, events: Table) -> Table:
        image = events.fixed("image") if self.config.data.images else images.draw(events, self.config.images)
        return inputs.sample(events, self.config.data, {"image": image})

    def model(self) -> nn.Module:
        from clew.recipes.jets.cloud import PixelCloud
        from clew.recipes.jets.network import ImageNet

        kind = PixelCloud if self.config.model.kind == "cloud" else ImageNet
        return kind(len(self.config.data.classes), self.config.model)

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        return model(batch["image"])
