"""All members of an ensemble asked about samples at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from clew.data.dataset.batch import Batch
from clew.errors import DataError, RunError
from clew.inference.model_runner import ModelRunner
from clew.inference.parallel_inference import InferenceTask
from clew.training import checkpoint, validation
from clew.training.packs.forward import PackForward


@dataclass
class EnsembleRunner(ModelRunner):
    """Outputs have a second axis of members behind that of events: (events, members, ...)."""

    others: list[nn.Module] = field(default_factory=list)
    """The members behind the first."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._pack: PackForward | None = None
        self._singly = False

    def outputs(self, batch: Batch) -> Any:
        if self._pack is None and not self._singly:
            self._try(batch)
        found = self._each(batch) if self._pack is None else validation.outputs_by_name(self._pack.outputs(batch))
        for name, value in found.items():
            if value.ndim < 2 or value.shape[1] != batch.size:
                raise DataError(
                    f"the output '{name}' has not one row an event; predict with one member of the ensemble"
                )
        return {name: value.transpose(0, 1) for name, value in found.items()}

    def _each(self, batch: Batch) -> dict[str, torch.Tensor]:
        said = [validation.outputs_by_name(self.recipe.forward(model, batch)) for model in (self.model, *self.others)]
        return {name: torch.stack([each[name] for each in said]) for name in said[0]}

    def _try(self, batch: Batch) -> None:
        """All at once where they can be stacked, else one after the other."""
        models = [self.model, *self.others]
        try:
            with torch.no_grad():
                pack = PackForward([self.recipe], models, [0] * len(models), self.device)
                pack.find_short_cut(batch, judging=True)
                pack.train(False)
            self._pack = pack
        except Exception:  # whatever vmap does not know
            for model in self.others:
                model.to(self.device).eval()
            self._singly = True


@dataclass(frozen=True)
class EnsembleTask(InferenceTask):
    """What is done with samples by all members that have learned."""

    def engine(self, device: torch.device) -> ModelRunner:
        models = []
        for run in self.run.replicas():
            if run.checkpoint(self.weights).exists():
                models.append(self.recipe.model())
                checkpoint.load(models[-1], run.checkpoint(self.weights))
        if not models:
            raise RunError(f"{self.run.path}: no member of the ensemble has weights yet")
        return EnsembleRunner(self.recipe, models[0], device, self.size, self.work.losses, models[1:])
