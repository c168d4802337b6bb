"""Images of jets: the pT of constituents in cells of eta and phi."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from clew import Table

if TYPE_CHECKING:
    from clew.recipes.jets.settings import JetImageConfig

NEEDS = ("part_pt", "part_deta", "part_dphi")
Floats = NDArray[np.float64]


def draw(jets: Table, settings: JetImageConfig) -> NDArray[np.float32]:
    """Images (jets, pixels, pixels) of pT: rows are eta, columns are phi. Constituents outside are ignored."""
    pt = jets.ragged("part_pt")
    eta, phi = (jets.ragged(name).values.astype(np.float64) for name in NEEDS[1:])
    jet, value, side = pt.events, pt.values.astype(np.float64), settings.pixels
    if settings.rotate:
        eta, phi = _upright(eta, phi, value, jet, len(jets))
    cells = [np.floor((x / settings.width + 0.5) * side).astype(np.int64) for x in (eta, phi)]
    inside = ((cells[0] >= 0) & (cells[0] < side)) & ((cells[1] >= 0) & (cells[1] < side))
    place = ((jet * side + cells[0]) * side + cells[1])[inside]
    image = np.bincount(place, weights=value[inside], minlength=len(jets) * side * side)
    return image.reshape(len(jets), side, side).astype(np.float32)


def _upright(eta: Floats, phi: Floats, pt: Floats, jet: NDArray[np.int64], count: int) -> tuple[Floats, Floats]:
    """Rotate the axis of the largest spread to eta, and mirror so that more pT is at positive coordinates."""

    def total(values: Floats) -> Floats:
        return np.asarray(np.bincount(jet, weights=pt * values, minlength=count))

    angle = 0.5 * np.arctan2(2 * total(eta * phi), total(eta**2) - total(phi**2))[jet]
    along, across = eta * np.cos(angle) + phi * np.sin(angle), phi * np.cos(angle) - eta * np.sin(angle)
    signs = [np.where(total(np.sign(x)) < 0, -1.0, 1.0)[jet] for x in (along, across)]
    return along * signs[0], across * signs[1]
