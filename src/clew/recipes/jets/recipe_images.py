"""The recipe `jetimages`: a jet is an image; the network is a convolution or works on the set of pixels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from clew import Table
from clew.recipes.jets import images, inputs
from clew.recipes.jets.settings import JetImagesConfig
from clew.recipes.jets.tagging_recipe import JetTaggingRecipe

if TYPE_CHECKING:
    from torch import nn

    from clew import Batch


class JetImages(JetTaggingRecipe):
    """Jet tagging from images: those of the file, or images of the constituents' pT in eta and phi."""

    Config = JetImagesConfig
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
        return inputs.make_samples(events, self.config.data, {"image": image})

    def model(self) -> nn.Module:
        from clew.recipes.jets.cloud import PixelCloud
        from clew.recipes.jets.network import ImageNet

        kind = PixelCloud if self.config.model.kind == "cloud" else ImageNet
        return kind(len(self.config.data.classes), self.config.model)

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        return model(batch["image"])
