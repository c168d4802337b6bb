"""Runs all members of an ensemble on samples."""

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
    """Outputs have the shape (events, members, ...)."""

    others: list[nn.Module] = field(default_factory=list)
    """The members after the first."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._pack: PackForward | None = None
        self._separately = False

    def outputs(self, batch: Batch) -> Any:
        if self._pack is None and not self._separately:
            self._try_stacking(batch)
        outputs = self._run_each(batch) if self._pack is None else validation.outputs_by_name(self._pack.outputs(batch))
        for name, value in outputs.items():
            if value.ndim < 2 or value.shape[1] != batch.size:
                raise DataError(
                    f"the output '{name}' does not have one row per event; predict with one member of the ensemble"
                )
        return {name: value.transpose(0, 1) for name, value in outputs.items()}

    def _run_each(self, batch: Batch) -> dict[str, torch.Tensor]:
        outputs = [
            validation.outputs_by_name(self.recipe.forward(model, batch)) for model in (self.model, *self.others)
        ]
        return {name: torch.stack([member[name] for member in outputs]) for name in outputs[0]}

    def _try_stacking(self, batch: Batch) -> None:
        """Stack the members to run them at once. If that fails, they run one after the other."""
        models = [self.model, *self.others]
        try:
            with torch.no_grad():
                pack = PackForward([self.recipe], models, [0] * len(models), self.device)
                pack.choose_implementation(batch, evaluation=True)
                pack.train(False)
            self._pack = pack
        except Exception:  # vmap does not support everything
            for model in self.others:
                model.to(self.device).eval()
            self._separately = True


@dataclass(frozen=True)
class EnsembleTask(InferenceTask):
    """A task for all members that have weights."""

    def engine(self, device: torch.device) -> ModelRunner:
        models = []
        for run in self.run.replicas():
            if run.checkpoint(self.weights).exists():
                models.append(self.recipe.model())
                checkpoint.load(models[-1], run.checkpoint(self.weights))
        if not models:
            raise RunError(f"{self.run.path}: no member of the ensemble has weights yet")
        return EnsembleRunner(self.recipe, models[0], device, self.size, self.work.losses, models[1:])
