"""Pictures of showers: energy against depth and radius."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from clew import figure

Shape = tuple[int, int, int]
MIN_ENERGY = 0.1
"""Start of the colour scale, MeV."""


def shower_picture(voxels: NDArray[np.floating], shape: Shape, title: str) -> figure.Figure:
    """Draw one shower.

    Args:
        voxels: Energies in MeV, (voxels).
        shape: Layers, angles (or rows) and rings (or columns).
        title: Title of the picture.

    Returns:
        A heat map: layers along x, rings (or columns) along y, summed over angles (or rows), on a logarithmic scale.
    """
    grid = np.asarray(voxels, dtype=np.float64).reshape(shape).sum(axis=1).T
    shown = np.log10(np.where(grid >= MIN_ENERGY, grid, np.nan))
    rows = [[None if np.isnan(cell) else float(cell) for cell in row] for row in shown]
    cells = {"type": "heatmap", "z": rows, "colorscale": "Viridis", "colorbar": {"title": {"text": "log10 MeV"}}}
    return figure.figure([cells], title=title, x="layer", y="ring")
