"""The scaling that an exported model applies to raw columns is that of the transforms."""

from __future__ import annotations

import numpy as np
import torch

from clew import Table
from clew.data.transforms import Compute, MinMax, Standard, fit
from clew.inference.export.preprocessing import describe_preprocessing
from clew.inference.flat_forward import ModelInput
from clew.recipe import Recipe

RNG = np.random.default_rng(3)
EVENTS = Table({"pt": RNG.exponential(40, 200).astype(np.float32), "eta": RNG.normal(1, 2, 200).astype(np.float32)})


class TwoColumns(Recipe):
    """Its samples are two columns of the events, side by side."""

    def passthrough_columns(self) -> dict[str, tuple[str, ...]]:
        return {"features": ("pt", "eta")}


def test_several_scalings_of_a_column_are_composed() -> None:
    """Neither has mean 0 nor range 1 when the next one is fitted."""
    chain = [Standard(columns=("pt",)), MinMax(columns=("pt", "eta")), Standard(columns=("eta", "pt"))]
    transforms, scaled = fit(chain, lambda: [EVENTS]), EVENTS
    for transform in transforms:
        scaled = transform(scaled)
    inputs = [ModelInput(name="features", column="features", part="column")]
    done = describe_preprocessing(TwoColumns(), transforms, inputs)
    raw, expected = (
        torch.from_numpy(np.stack([table.fixed("pt"), table.fixed("eta")], axis=1)) for table in (EVENTS, scaled)
    )
    torch.testing.assert_close(done.scales["features"].apply(raw), expected.float(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(done.scales["features"].undo(expected), raw, rtol=1e-5, atol=1e-4)
    assert done.included == ("standard of pt", "min_max of pt, eta", "standard of eta, pt") and not done.left_out


INPUTS = [ModelInput(name="features", column="features", part="column")]


def test_a_scaling_without_a_shift_is_applied() -> None:
    """Both columns have mean 0."""
    events = Table({"pt": np.array([-2.0, 2.0]), "eta": np.array([-4.0, 4.0])})
    transforms = fit([Standard(columns=("pt", "eta"))], lambda: [events])
    scale = describe_preprocessing(TwoColumns(), transforms, INPUTS).scales["features"]
    assert (scale.shift, scale.factor) == ((0.0, 0.0), (0.5, 0.25))


def test_scalings_before_a_computed_column_are_left_out() -> None:
    """`pt` is computed from what the first scaling made, so a model that gets `pt` can apply the second only."""
    chain = [Standard(columns=("pt",)), Compute(column="pt", expression="2 * pt"), Standard(columns=("pt", "eta"))]
    transforms = fit(chain, lambda: [EVENTS])
    done = describe_preprocessing(TwoColumns(), transforms, INPUTS)
    assert done.included == ("standard of pt, eta",)
    assert len(done.left_out) == 2 and done.left_out[0] == "standard of pt"
