"""The recipe `lartpc`: which particle made an image of wires and ticks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from clew import Recipe, Table, tally
from clew.recipes.lartpc import inputs, judging
from clew.recipes.lartpc.columns import CHARGE, CLASSES, ENERGY, EVENT, INDEX, LABEL
from clew.recipes.lartpc.settings import Settings

if TYPE_CHECKING:
    from torch import Tensor, nn

    from clew import Batch


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

    def truth(self) -> Sequence[str]:
        return (LABEL, ENERGY)

    def prepare(self, events: Table) -> Table:
        """The pixels of each event, checked.

        Raises:
            DataError: an event cannot be one of these images.
        """
        index, charge = inputs.checked(events, self.config.image)
        kept = {name: events.fixed(name) for name in (EVENT, LABEL, ENERGY) if name in events}
        return Table({**kept, INDEX: index, CHARGE: charge})

    def model(self) -> nn.Module:
        from clew.recipes.lartpc.network import ParticleNet

        return ParticleNet(self.config.image.wires, self.config.image.ticks, self.config.model.kind)

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        index = batch.ragged(INDEX)
        return model(index.values, batch[CHARGE] / self.config.model.unit, index.offsets)

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Cross-entropy of every event."""
        from torch.nn.functional import cross_entropy

        return cross_entropy(outputs, batch[LABEL], reduction="none")

    def reconstruct(self, samples: Table, outputs: Mapping[str, Any]) -> Table:
        """`score_CLASS` of each class: the probability that the network gives it; they add up to 1."""
        found = judging.scores(outputs["output"])
        return Table({f"score_{name}": found[:, place] for place, name in enumerate(CLASSES)})

    def metrics(self, samples: Table, outputs: Mapping[str, Any], objects: Table) -> Mapping[str, tally.Tally]:
        return judging.tallies(samples, outputs["output"], self.config.judging.energy_edges)
