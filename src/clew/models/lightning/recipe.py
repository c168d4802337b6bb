"""A LightningModule trained on columns of tables: `clew train --model my.py:LitModel`, `clew.train(module, ...)`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from clew.errors import ConfigError
from clew.models import loading
from clew.models.columns import FEATURES, LABELS, Columns, model_inputs
from clew.models.lightning.refusals import check_module, is_overridden
from clew.recipe import TrainingHooks, TrainingPlan

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from clew.data.dataset.batch import Batch
    from clew.metrics import Metric
    from clew.models.lightning.session import LightningSession
    from clew.recipe import Loss


class LightningColumns(Columns):
    """A LightningModule trained on columns of tables."""

    makes_optimizers = "configure_optimizers() of the LightningModule"

    def model(self) -> nn.Module:
        module: Any = super().model()
        if not loading.is_lightning(module):
            raise ConfigError(f"{type(module).__name__} is no LightningModule; train it with the recipe columns")
        check_module(module)
        self._session(module)
        module.configure_model()
        module.setup("fit")
        built: nn.Module = module
        return built

    def alternates(self, model: nn.Module) -> bool:
        return not model.automatic_optimization

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        inputs = model_inputs(batch)
        if not is_overridden("predict_step", model):
            return model(*inputs)
        return self._session(model).predict(inputs[0] if len(inputs) == 1 else inputs)

    def step(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor | Loss]:
        return self._session(model).train(batch, self._step_inputs(batch))

    def optimizers(self, model: nn.Module) -> Mapping[str, Optimizer]:
        optimizers = self._session(model).optimizer_list
        if len(optimizers) == 1:
            return {"loss": optimizers[0]}
        return {f"optimizer_{number}": optimizer for number, optimizer in enumerate(optimizers)}

    def hooks(self, model: nn.Module, plan: TrainingPlan) -> TrainingHooks:
        from clew.models.lightning.sharding import gather_for_steps

        gather_for_steps(model)
        return self._session(model).begin(plan)

    def validation_metrics(self, model: nn.Module, batch: Batch, *, test: bool) -> Mapping[str, Metric]:
        return self._session(model).evaluate(batch, self._step_inputs(batch), test=test)

    @staticmethod
    def _session(model: nn.Module) -> LightningSession:
        from clew.models.lightning.session import session_of

        return session_of(model)

    def _step_inputs(self, batch: Batch) -> Any:
        """Return what a step of the module gets as its batch."""
        inputs = [*model_inputs(batch), batch[LABELS], *([] if batch.weights is None else [batch.weights])]
        if self.config.model.batch == "tuple":
            return tuple(inputs)
        chosen = self.config.columns
        features = chosen.features[0] if len(chosen.features) == 1 else FEATURES
        labels = chosen.labels[0] if len(chosen.labels) == 1 else LABELS
        names = [features, *(["mask"] if hasattr(batch.columns[FEATURES], "padded") else []), labels, "weight"]
        return dict(zip(names, inputs, strict=False))
