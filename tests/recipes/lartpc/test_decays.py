"""Branching ratios, end points and balance of decays."""

from __future__ import annotations

import numpy as np
import pytest

from clew.recipes.lartpc.generate import decays, hadrons
from clew.recipes.lartpc.generate import particles as p

from . import beam, shoot


def test_michel_electrons_end_at_53_mev() -> None:
    share = decays.draw_michel_fractions(np.random.default_rng(1), 100_000)
    assert pytest.approx(52.83, abs=0.01) == decays.MICHEL_END_POINT
    assert share.max() <= 1 < share.max() + 0.001
    assert share.mean() == pytest.approx(0.7, abs=0.003)


def test_a_muon_at_rest_gives_an_electron_below_the_end_point() -> None:
    daughters = decays.decay(np.random.default_rng(1), beam(p.ANTIMUON, 0.0, 5000))
    assert set(daughters.kind.tolist()) == {p.POSITRON}
    assert 50 < daughters.energy.max() < 52.83
    assert np.abs(daughters.direction.mean(axis=0)).max() < 0.05


def test_kaons_decay_by_their_branching_ratios() -> None:
    size = 40_000
    daughters = decays.decay(np.random.default_rng(1), beam(p.KAON_PLUS, 0.0, size))
    muons, pions = daughters[daughters.of(p.ANTIMUON)], daughters[daughters.of(p.PION_PLUS)]
    two_body = np.isclose(muons.energy, 152.49, atol=0.05)
    assert two_body.sum() / size == pytest.approx(0.6356, abs=0.01)
    assert np.isclose(pions.energy, 108.5, atol=0.1).sum() / size == pytest.approx(0.2067, abs=0.008)
    assert daughters.of(p.PION_MINUS).sum() / size == pytest.approx(0.0558, abs=0.005)
    assert daughters.of(p.POSITRON).sum() / size == pytest.approx(0.0507, abs=0.005)


def test_three_bodies_balance() -> None:
    daughters = decays.decay(np.random.default_rng(1), beam(p.KAON_PLUS, 300.0, 4000))
    charged = daughters.of(p.PION_PLUS, p.PION_MINUS)
    all_seen = np.bincount(daughters.event[charged], minlength=4000) == 3
    momentum = daughters.direction * daughters.momentum[:, None]
    total = np.stack([np.bincount(daughters.event, axis, minlength=4000) for axis in momentum.T], axis=1)
    energy = np.bincount(daughters.event, daughters.energy + p.MASS[daughters.kind], minlength=4000)
    assert all_seen.sum() > 100
    np.testing.assert_allclose(energy[all_seen], 300 + 493.677, rtol=1e-9)
    np.testing.assert_allclose(total[all_seen][:, 2], beam(p.KAON_PLUS, 300.0, 1).momentum[0], rtol=1e-9)


def test_three_in_four_negative_muons_are_captured_and_no_positive_one() -> None:
    from clew.recipes.lartpc.generate.transport import CAPTURE, MICHEL

    _, negative = shoot(p.MUON, 30.0, 800)
    _, positive = shoot(p.ANTIMUON, 30.0, 100)
    assert ((negative.history & CAPTURE) > 0).mean() == pytest.approx(hadrons.MUON_CAPTURE_FRACTION, abs=0.05)
    assert ((positive.history & (CAPTURE | MICHEL)) == MICHEL).all()


def test_pions_end_by_their_charge() -> None:
    from clew.recipes.lartpc.generate.transport import MICHEL, PION_DECAY, STAR

    _, positive = shoot(p.PION_PLUS, 20.0, 200)
    _, negative = shoot(p.PION_MINUS, 20.0, 200)
    assert ((positive.history & PION_DECAY) > 0).mean() > 0.95
    assert ((positive.history & MICHEL) > 0).mean() > 0.95
    assert ((negative.history & STAR) > 0).mean() > 0.9
