"""Images of constituents: pT is in the right cell, and rotating a jet does not change its image."""

from __future__ import annotations

import numpy as np

from clew import Ragged, Table
from clew.recipes.jets.images import draw
from clew.recipes.jets.settings import JetImageConfig

from . import jets


def _jet(*parts: tuple[float, float, float]) -> Table:
    pt, eta, phi = zip(*parts, strict=True)
    like = Ragged.from_lists([pt])
    return Table({"part_pt": like, "part_deta": like.share(eta), "part_dphi": like.share(phi)})


def test_every_constituent_falls_into_its_cell() -> None:
    images = draw(
        _jet((10, -0.5, 0.5), (5, 0.1, -0.7), (2, 0.15, -0.65), (7, 3, 0)), JetImageConfig(pixels=4, rotate=False)
    )
    assert images.shape == (1, 4, 4) and images[0, 0, 3] == 10 and images[0, 2, 0] == 7 and images.sum() == 17


def test_a_turned_or_mirrored_jet_has_the_same_image() -> None:
    rng = np.random.default_rng(2)
    parts = rng.normal([[0.1, 0.02]], [[0.25, 0.08]], (30, 2))
    pt, first = rng.exponential(10, 30), None
    for angle, side in ((0.0, 1), (0.7, 1), (2.9, -1), (-1.2, -1)):
        eta = parts[:, 0] * np.cos(angle) - parts[:, 1] * np.sin(angle)
        phi = side * (parts[:, 0] * np.sin(angle) + parts[:, 1] * np.cos(angle))
        image = draw(_jet(*zip(pt, eta, phi, strict=True)), JetImageConfig(pixels=16))
        first = image if first is None else first
        assert np.abs(image - first).sum() / first.sum() < 0.02  # one at an edge may change cells by rounding


def test_jets_do_not_mix_and_empty_ones_are_empty() -> None:
    table = jets(20)
    whole = draw(table, JetImageConfig(pixels=10))
    assert not whole[0].any()
    for jet in range(20):
        np.testing.assert_allclose(draw(table.slice(jet, jet + 1), JetImageConfig(pixels=10))[0], whole[jet], rtol=1e-5)
