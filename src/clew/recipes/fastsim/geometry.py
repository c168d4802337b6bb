"""Geometries of calorimeters: which voxel of a shower is where.

The voxels of a layer are numbered with the radius fastest: `angular * radial_bins + radial`. Layers follow each other.
"""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from clew import Section
from clew.errors import ConfigError

Floats = NDArray[np.float64]
Count = Annotated[int, Field(ge=1)]


@dataclass(frozen=True)
class CylinderLayer:
    """The voxels of one layer in rings and angles.

    Args:
        number: Number of the layer in the detector.
        radial_edges: Edges of the rings, mm, increasing.
        angular_bins: Number of bins in the azimuth.
    """

    number: int
    radial_edges: tuple[float, ...]
    angular_bins: int

    @property
    def voxels(self) -> int:
        """Number of voxels."""
        return self.angular_bins * (len(self.radial_edges) - 1)

    def positions(self) -> tuple[Floats, Floats]:
        """Return x and y of the centre of each voxel, mm. A layer that is not divided in angles is at the origin."""
        edges = np.array(self.radial_edges)
        radius = (edges[1:] + edges[:-1]) / 2
        if self.angular_bins == 1:
            return np.zeros(len(radius)), np.zeros(len(radius))
        angle = (np.arange(self.angular_bins) + 0.5) * 2 * math.pi / self.angular_bins
        x, y = np.outer(np.cos(angle), radius), np.outer(np.sin(angle), radius)
        return x.ravel(), y.ravel()


@dataclass(frozen=True)
class GridLayer:
    """The voxels of one layer in rows and columns of squares with sides of 1."""

    number: int
    rows: int
    columns: int

    @property
    def voxels(self) -> int:
        """Number of voxels."""
        return self.rows * self.columns

    def positions(self) -> tuple[Floats, Floats]:
        """Return x and y of the centre of each voxel, in cells from the middle."""
        x, y = np.meshgrid(
            np.arange(self.rows) - (self.rows - 1) / 2, np.arange(self.columns) - (self.columns - 1) / 2, indexing="ij"
        )
        return x.ravel(), y.ravel()


@dataclass(frozen=True)
class Geometry:
    """The layers of a calorimeter.

    Args:
        name: Name for messages.
        layers: The layers, in the order in which their voxels are stored.

    Example:
        >>> geometry = GeometryConfig().load()
        >>> geometry.voxels, geometry.shape
        (6480, (45, 16, 9))
    """

    name: str
    layers: tuple[CylinderLayer, ...] | tuple[GridLayer, ...]

    @cached_property
    def voxels(self) -> int:
        """Number of voxels of a shower."""
        return sum(layer.voxels for layer in self.layers)

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """The first voxel of each layer."""
        return np.cumsum([0, *(layer.voxels for layer in self.layers)])[:-1]

    @property
    def shape(self) -> tuple[int, int, int] | None:
        """Layers, angles and rings (or rows and columns) if all layers are equal, else None."""
        first = self.layers[0]
        if isinstance(first, GridLayer):
            return len(self.layers), first.rows, first.columns
        cylinders = [layer for layer in self.layers if isinstance(layer, CylinderLayer)]
        if any(
            (each.radial_edges, each.angular_bins) != (first.radial_edges, first.angular_bins) for each in cylinders
        ):
            return None
        return len(self.layers), first.angular_bins, len(first.radial_edges) - 1

    def layer_sums(self, values: NDArray[np.floating]) -> Floats:
        """Sum a value of each voxel (showers, voxels) over each layer: (showers, layers)."""
        return np.add.reduceat(np.asarray(values, dtype=np.float64), self.starts, axis=1)


class GeometryConfig(Section):
    """Which calorimeter the showers are from."""

    kind: Literal["dataset2", "dataset3", "xml", "grid"] = "dataset2"
    """`dataset2`: 45 layers x 16 angles x 9 rings; `dataset3`: 45 x 50 x 18; `xml`: the binning file of the
    CaloChallenge that `file` names; `grid`: a regular grid of `cells`."""
    file: str = ""
    """Binning file in XML, for `xml`."""
    particle: str = ""
    """Name of the particle in the binning file, such as `photon`. Empty: the only one."""
    cells: tuple[Count, Count, Count] = (25, 25, 25)
    """Layers, rows and columns, for `grid`."""

    @model_validator(mode="after")
    def _check_file(self) -> Self:
        if (self.kind == "xml") != bool(self.file):
            raise ValueError(
                "kind: xml needs file, and only it: --set geometry.kind=xml --set geometry.file=binning.xml"
            )
        return self

    def load(self) -> Geometry:
        """Return the geometry.

        Raises:
            ConfigError: The binning file cannot be read.
        """
        if self.kind == "xml":
            return read_binning(self.file, self.particle)
        if self.kind == "grid":
            layers, rows, columns = self.cells
            return Geometry(
                f"a grid of {layers}x{rows}x{columns}", tuple(GridLayer(n, rows, columns) for n in range(layers))
            )
        angles, rings, width = (16, 9, 4.65) if self.kind == "dataset2" else (50, 18, 2.325)
        edges = tuple(width * ring for ring in range(rings + 1))
        return Geometry(f"data set {self.kind[-1]}", tuple(CylinderLayer(n, edges, angles) for n in range(45)))


def read_binning(path: str, particle: str = "") -> Geometry:
    """Read a binning file of the CaloChallenge.

    Args:
        path: An XML file with `<Layer id="0" r_edges="0,5,10" n_bin_alpha="8"/>` elements. Layers without a ring are
            skipped.
        particle: Name of the `<Particle>` element to read. Empty if the file has only one.

    Raises:
        ConfigError: The file cannot be read, has no such particle, or a layer is not valid.
    """
    try:
        root = ElementTree.parse(path).getroot()
    except (OSError, ElementTree.ParseError) as error:
        raise ConfigError(f"geometry.file {path}: not a readable XML file ({error})") from error
    particles = {element.get("name", ""): element for element in root.iter("Particle")}
    if particle and particle not in particles:
        raise ConfigError(f"geometry.file {path}: no particle '{particle}', only {', '.join(particles) or 'layers'}")
    if not particle and len(particles) > 1:
        raise ConfigError(f"geometry.file {path}: set geometry.particle to one of {', '.join(particles)}")
    element = particles[particle] if particle else next(iter(particles.values()), root)
    layers = [layer for layer in (_read_layer(path, each) for each in element.iter("Layer")) if layer is not None]
    if not layers:
        raise ConfigError(f"geometry.file {path}: no <Layer> with rings in it")
    return Geometry(f"binning file {path}", tuple(layers))


def _read_layer(path: str, element: ElementTree.Element) -> CylinderLayer | None:
    number, edges_text, angles_text = (element.get(key, "") for key in ("id", "r_edges", "n_bin_alpha"))
    try:
        edges = tuple(float(each) for each in edges_text.split(",") if each.strip())
        if len(edges) < 2:
            return None
        layer = CylinderLayer(int(number), edges, int(angles_text))
    except ValueError as error:
        raise ConfigError(f"geometry.file {path}: layer '{number}' is not valid ({error})") from error
    if layer.angular_bins < 1 or any(high <= low for low, high in pairwise(edges)):
        raise ConfigError(f"geometry.file {path}: layer {number} needs increasing r_edges and n_bin_alpha of 1 or more")
    return layer
