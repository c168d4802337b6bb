"""Judging a model on samples: forward, reconstruct, tally."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from clew.dataset.batch import to_batch
from clew.recipe import Recipe
from clew.table import Table
from clew.tally import Mean, Tally
from clew.train.engine import as_loss


def judge(recipe: Recipe, model: nn.Module, samples: Table, device: torch.device) -> dict[str, Tally]:
    """Every tally of a batch of samples: the losses, then the recipe's metrics."""
    outputs, losses = forward(recipe, model, samples, device)
    objects = recipe.reconstruct(samples, outputs)
    return {**losses, **recipe.metrics(samples, outputs, objects)}


def forward(
    recipe: Recipe, model: nn.Module, samples: Table, device: torch.device
) -> tuple[dict[str, NDArray[Any]], dict[str, Tally]]:
    """The network's outputs as NumPy arrays, and the losses where the recipe has a plain `loss`."""
    batch = to_batch(samples, recipe.columns).to(device)
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            outputs = recipe.forward(model, batch)
            losses: dict[str, Tally] = {}
            if type(recipe).loss is not Recipe.loss:
                total, weight = as_loss(recipe.loss(outputs, batch), batch)
                losses["loss"] = Mean(float(total), weight)
    finally:
        model.train(was_training)
    return _named(outputs), losses


def _named(outputs: Tensor | Mapping[str, Tensor]) -> dict[str, NDArray[Any]]:
    named = outputs if isinstance(outputs, Mapping) else {"output": outputs}
    return {name: np.asarray(value.detach().float().cpu().numpy()) for name, value in named.items()}
