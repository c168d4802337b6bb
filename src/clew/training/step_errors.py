"""A training step whose errors name the recipe's line and the samples of the batch."""

from __future__ import annotations

from collections.abc import Mapping

from clew.data.dataset.loader import BatchShare
from clew.recipe import Loss
from clew.recipe_errors import recipe_error
from clew.training.engine import Engine
from clew.training.strategies import LossSum
from clew.training.validation import describe_samples


def train_step(engine: Engine, portion: BatchShare, dataset: str) -> Mapping[str, LossSum | Loss]:
    """Train on one batch.

    Args:
        engine: The model with its optimisers.
        portion: The share of this rank.
        dataset: Location of the dataset, for the message of an error.

    Returns:
        Each loss, summed over all parts and ranks.

    Raises:
        RecipeCodeError: The recipe or the model raised an exception.
    """
    try:
        return engine.step(portion.parts)
    except Exception as error:
        translated = recipe_error(error, lambda: _describe(portion, dataset))
        if translated is error:
            raise
        raise translated from error


def _describe(portion: BatchShare, dataset: str) -> str:
    columns = portion.parts[0].describe() if portion.parts else ""
    return f"{describe_samples(portion.numbers, 'train')} of {dataset}, with {columns}"
