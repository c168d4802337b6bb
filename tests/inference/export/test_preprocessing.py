"""The scaling that an exported model applies to raw columns is that of the transforms."""

from __future__ import annotations

import numpy as np
import torch

from clew import Table
from clew.data.transforms import Compute, MinMax, Reweight, Select, Standard, fit
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


def test_cuts_stay_outside_and_change_no_scaling() -> None:
    chain = [Standard(columns=("pt",)), Select(where="pt > -1"), Standard(columns=("eta",))]
    transforms = fit(chain, lambda: [EVENTS])
    done = describe_preprocessing(TwoColumns(), transforms, INPUTS)
    assert done.included == ("standard of pt", "standard of eta") and done.left_out == ("select 'pt > -1'",)


def test_scalings_before_an_unknown_transform_are_left_out() -> None:
    """It may change any column, so only what follows it can be part of a model."""
    weights = Reweight(by="label", factors={})
    for chain, included in (
        ([Standard(columns=("pt",)), weights, MinMax(columns=("pt", "eta"))], ("min_max of pt, eta",)),
        ([weights, Standard(columns=("pt",)), MinMax(columns=("pt", "eta"))], ("standard of pt", "min_max of pt, eta")),
        ([Standard(columns=("pt", "eta")), weights], ()),
    ):
        events = EVENTS.join({"label": np.zeros(200, dtype=int)})
        done = describe_preprocessing(TwoColumns(), fit(chain, lambda: [events]), INPUTS)  # noqa: B023
        assert done.included == included and "reweight" in done.left_out
        assert ("features" in done.scales) is bool(included)


def test_a_column_computed_last_is_not_scaled() -> None:
    chain = [Standard(columns=("pt",)), Compute(column="pt", expression="2 * pt")]
    done = describe_preprocessing(TwoColumns(), fit(chain, lambda: [EVENTS]), INPUTS)
    assert done.scales == {} and done.left_out == ("standard of pt", "compute pt = '2 * pt'")
    first = fit([chain[1], chain[0]], lambda: [EVENTS])
    assert describe_preprocessing(TwoColumns(), first, INPUTS).included == ("standard of pt",)
    other = [Standard(columns=("pt",)), Compute(column="mass", expression="2 * pt")]
    assert describe_preprocessing(TwoColumns(), fit(other, lambda: [EVENTS]), INPUTS).included == ("standard of pt",)


def test_inputs_that_a_recipe_makes_are_named() -> None:
    inputs = [*INPUTS, *(ModelInput(name=name, column=name, part="column") for name in ("edges", "another"))]
    done = describe_preprocessing(TwoColumns(), (), inputs)
    assert done.left_out == ("TwoColumns.prepare, which makes another, edges",) and done.scales == {}
    unused = describe_preprocessing(TwoColumns(), fit([Standard(columns=("pt",))], lambda: [EVENTS]), inputs[1:])
    assert unused.scales == {} and unused.left_out[0] == "standard of pt"


def test_a_constant_column_is_scaled_as_by_its_transform() -> None:
    events = Table({"pt": np.full(3, 4.0), "eta": np.array([1.0, 2.0, 3.0])})
    for transform in (Standard(columns=("pt", "eta")), MinMax(columns=("pt", "eta"))):
        (fitted,) = fit([transform], lambda: [events])
        scale = describe_preprocessing(TwoColumns(), [fitted], INPUTS).scales["features"]
        raw, scaled = (np.stack([each.fixed("pt"), each.fixed("eta")], axis=1) for each in (events, fitted(events)))
        np.testing.assert_allclose(scale.apply(torch.from_numpy(raw)).numpy(), scaled, atol=1e-6)


def test_a_scaling_that_changes_nothing_is_no_scaling() -> None:
    same = Standard(columns=("pt", "eta"), mean={"pt": 0.0, "eta": 0.0}, std={"pt": 1.0, "eta": 1.0})
    assert describe_preprocessing(TwoColumns(), [same], INPUTS).scales == {}
    one = Standard(columns=("eta",), mean={"eta": 0.0}, std={"eta": 2.0})
    scale = describe_preprocessing(TwoColumns(), [same, one], INPUTS).scales["features"]
    assert (scale.shift, scale.factor) == ((0.0, 0.0), (1.0, 0.5))
