"""An exported model is compared with the original on batches of several sizes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from clew import Batch, Dataset
from clew.errors import RecipeError
from clew.inference.export.parity import SAMPLES, SIZES, largest_difference, read_samples, trial_batches
from tests.training import recipe
from tests.training.conftest import flat

__all__ = ["flat"]


class Exported(nn.Module):
    """The original model with a fault at some sizes of a batch."""

    def __init__(self, model: nn.Module, change: Callable[[Tensor], Tensor], faulty: Callable[[int], bool]) -> None:
        super().__init__()
        self.model, self.change, self.faulty = model, change, faulty

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        output = recipe("line").forward(self.model, batch)
        return {"output": self.change(output) if self.faulty(batch.size) else output}


def difference(flat: Dataset, change: Callable[[Tensor], Tensor], faulty: Callable[[int], bool]) -> tuple[float, int]:
    line = recipe("line")
    model = line.model()
    trials = trial_batches(read_samples(flat, "train"), line)
    worst = largest_difference(line, model, Exported(model, change, faulty), trials)
    return worst.value, worst.size


def test_samples_come_in_batches_of_several_sizes(flat: Dataset) -> None:
    samples = read_samples(flat, "train")
    sizes = [batch.size for batch in trial_batches(samples, recipe("line"))]
    assert sizes == [*SIZES, len(samples) - sum(SIZES)] and len(samples) == min(SAMPLES, flat.splits["train"])


@pytest.mark.parametrize("size", SIZES)
def test_a_model_that_is_wrong_at_one_size_only_is_noticed(flat: Dataset, size: int) -> None:
    value, of_size = difference(flat, lambda output: output + 10, lambda n: n == size)
    assert of_size == size and value > 1


def test_a_model_that_is_right_at_one_size_only_is_noticed(flat: Dataset) -> None:
    assert difference(flat, lambda output: output * 0 + 100, lambda n: n != SIZES[0])[0] > 1
    assert difference(flat, lambda output: output, lambda n: True) == (0.0, 0)


def test_other_shapes_and_failures_are_reported(flat: Dataset) -> None:
    with pytest.raises(RecipeError, match=r"returns \(3, 1\) for 'output', the original \(3,\)"):
        difference(flat, lambda output: output[:, None], lambda n: n == SIZES[2])
    with pytest.raises(RecipeError, match="fails on a batch of 17 samples"):
        difference(flat, lambda output: output @ torch.ones(3), lambda n: n == SIZES[3])
