"""Reweighting: classes become equal, in any order of chunks, and unusual events change nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from clew.data.table import Table
from clew.data.transforms import Reweight, fit
from clew.errors import DataError

RNG = np.random.default_rng(0)
LABEL = RNG.choice(3, 5000, p=[0.7, 0.2, 0.1])
EVENTS = Table({"label": LABEL, "pt": RNG.exponential(100 + 50 * LABEL), "weight": RNG.uniform(0.5, 1.5, 5000)})
EDGES = (0.0, 50.0, 100.0, 200.0, 400.0)


def _fitted(transform: Reweight, *tables: Table) -> Reweight:
    fitted = fit([transform], lambda: tables)[0]
    assert isinstance(fitted, Reweight)
    return fitted


def _spectra(events: Table) -> np.ndarray:
    bins = np.searchsorted(EDGES[1:-1], events.fixed("pt"), side="right")
    return np.array([np.bincount(bins[k == LABEL], events.weights[k == LABEL], minlength=4) for k in range(3)])


def test_flat_gives_every_class_and_bin_the_same_sum() -> None:
    reweighted = _fitted(Reweight(columns={"pt": EDGES}, largest=1e9), EVENTS)(EVENTS)
    spectra = _spectra(reweighted)
    np.testing.assert_allclose(spectra, spectra[0, 0])
    assert reweighted.weights.sum() == pytest.approx(EVENTS.weights.sum())


def test_a_reference_class_keeps_its_spectrum() -> None:
    spectra = _spectra(_fitted(Reweight(columns={"pt": EDGES}, reference=0), EVENTS)(EVENTS))
    before = _spectra(EVENTS)
    np.testing.assert_allclose(spectra / spectra.sum(axis=1, keepdims=True), [before[0] / before[0].sum()] * 3)
    np.testing.assert_allclose(spectra.sum(axis=1), spectra.sum() / 3)


def test_a_class_without_events_in_the_bins_of_the_reference_has_no_weight() -> None:
    events = Table({"label": np.array([0, 0, 1, 1]), "pt": np.array([10.0, 20.0, 110.0, 120.0])})
    reweighted = _fitted(Reweight(columns={"pt": EDGES}, reference=0), events)(events)
    assert reweighted.weights.tolist() == [2.0, 2.0, 0.0, 0.0]


def test_without_columns_classes_are_balanced_by_their_shares() -> None:
    reweighted = _fitted(Reweight(shares=(1, 1, 2)), EVENTS)(EVENTS)
    sums = np.bincount(LABEL, reweighted.weights)
    np.testing.assert_allclose(sums / sums[0], [1, 1, 2])


def test_the_order_of_chunks_changes_no_bit() -> None:
    parts = [EVENTS.slice(0, 7), EVENTS.slice(7, 3000), EVENTS.slice(3000)]
    one, other = (_fitted(Reweight(columns={"pt": EDGES}), *each) for each in (parts, parts[::-1]))
    assert one == other and Reweight.model_validate(one.model_dump(mode="json")) == one


def test_no_factor_is_above_the_largest() -> None:
    events = Table({"label": np.array([0] * 999 + [1]), "pt": np.ones(1000)})
    reweighted = _fitted(Reweight(largest=3), events)(events)
    assert reweighted.weights.max() == 3


def test_events_without_a_class_keep_their_weight() -> None:
    odd = Table({"label": np.array([-1, 7]), "pt": np.array([1.0, 1e9])})
    assert _fitted(Reweight(columns={"pt": EDGES}), EVENTS)(odd).weights.tolist() == [1, 1]


def test_an_event_at_an_edge_belongs_to_the_bin_above() -> None:
    """As in a histogram of NumPy: a bin contains its lower edge."""
    pt = np.array([50.0, 60.0, 70.0, 80.0, 100.0, 150.0])
    reweighted = _fitted(Reweight(columns={"pt": EDGES}), Table({"label": np.zeros(6, int), "pt": pt}))
    assert np.histogram(pt, EDGES)[0].tolist() == [0, 4, 2, 0]
    assert reweighted.factors is not None
    assert reweighted.factors[0] == pytest.approx({1: 3 / 4, 2: 3 / 2})
    edges = Table({"label": np.zeros(2, int), "pt": np.array([100.0, np.nextafter(100.0, 0)])})
    assert reweighted(edges).weights.tolist() == pytest.approx([3 / 2, 3 / 4])


def test_data_that_cannot_be_fitted_is_reported() -> None:
    with pytest.raises(DataError, match="no event of the reference class 9"):
        _fitted(Reweight(columns={"pt": EDGES}, reference=9), EVENTS)
    with pytest.raises(DataError, match="no factors yet"):
        Reweight()(EVENTS)
    with pytest.raises(ValidationError, match="must rise"):
        Reweight(columns={"pt": (1.0,)})


def test_bins_of_a_class_share_its_weight() -> None:
    """Two classes with equal sums of weights, in one bin and in two."""
    events = Table({"label": np.array([0, 0, 1, 1]), "pt": np.array([10.0, 20.0, 10.0, 110.0])})
    assert _fitted(Reweight(columns={"pt": EDGES}), events)(events).weights.tolist() == [1.0, 1.0, 1.0, 1.0]
    reference = _fitted(Reweight(columns={"pt": EDGES}, reference=1), events)(events)
    assert reference.weights.tolist() == [1.0, 1.0, 1.0, 1.0]


def test_one_bin_is_enough() -> None:
    events = Table({"label": np.array([0, 1, 1, 1]), "pt": np.array([-9.0, 1.0, 2.0, 99.0])})
    reweighted = _fitted(Reweight(columns={"pt": (0.0, 5.0)}), events)(events)
    assert reweighted.weights == pytest.approx([2.0, 2 / 3, 2 / 3, 2 / 3])


def test_bins_of_two_columns_are_counted_together() -> None:
    label, pt, eta = np.zeros(4, int), np.array([1.0, 1.0, 9.0, 9.0]), np.array([0.0, 2.0, 2.0, 2.0])
    events = Table({"label": label, "pt": pt, "eta": eta})
    fitted = _fitted(Reweight(columns={"pt": (0.0, 5.0, 10.0), "eta": (0.0, 1.0, 2.0, 3.0)}), events)
    assert fitted.factors is not None and list(fitted.factors) == [0]
    assert fitted.factors[0] == pytest.approx({0: 4 / 3, 2: 4 / 3, 5: 2 / 3})
    assert fitted.needs == ("label", "pt", "eta") and not fitted.needs_fit and Reweight().needs_fit


def test_classes_are_named_by_any_column_and_its_largest_value_needs_no_share() -> None:
    events = Table({"kind": np.array([0, 1, 2, 2]), "weight": np.array([1.0, 1.0, 1.0, 3.0])})
    reweighted = _fitted(Reweight(by="kind", shares=(2.0,)), events)(events)
    sums = np.bincount(events.fixed("kind"), reweighted.weights)
    assert sums == pytest.approx([3.0, 1.5, 1.5])


def test_events_with_negative_sums_keep_their_weight() -> None:
    """No factor makes a negative sum a positive one; as a reference it counts as no events."""
    events = Table({"label": np.array([0, 1]), "pt": np.array([1.0, 1.0]), "weight": np.array([-1.0, 3.0])})
    fitted = _fitted(Reweight(), events)
    assert fitted.factors is not None and fitted.factors[0] == {0: 1.0}
    assert fitted.factors[1] == {0: pytest.approx(1 / 3)}
    with pytest.raises(ValidationError, match="a reference class needs columns"):
        Reweight(reference=0)
    with pytest.raises(ValidationError, match="must rise"):
        Reweight(columns={"pt": (1.0, 1.0)})
    with pytest.raises(DataError, match="no event has a class in 'label'"):
        _fitted(Reweight(), Table({"label": np.array([-1, -2])}))
