"""From energy deposits in argon to an image: recombination, drift, wires, electronics, noise, zero suppression.

There is one plane of collection wires along y. Wires are numbered along z, and ticks measure the drift along x from the
wires. The image is the result of signal processing: charge after deconvolution, zero outside regions of interest.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from pydantic import Field
from scipy.special import ndtr

from clew import Section

Floats = NDArray[np.float64]
Positive = Annotated[float, Field(gt=0)]
PAIR_ENERGY = 23.6e-6
"""Energy per electron-ion pair, MeV."""
BOX_A, BOX_B = 0.93, 0.212
"""Parameters of the modified box model, measured by ArgoNeuT: without unit, and (kV/cm)(g/cm2)/MeV."""
DENSITY = 1.396
CHARGE_STEP = 1 / 32
"""Step of the charges, thousands of electrons: charges are integer multiples of it."""
_WIRE_REACH, _TICK_REACH, _BOX_MARGIN = 2, 9, 14
"""Pixels that a deposit reaches to each side, in wires and in ticks; margin of the box of an event."""


class ImagePixels(NamedTuple):
    """The nonzero pixels of an image: wire * columns + tick, increasing, and charge in thousands of electrons."""

    place: NDArray[np.int32]
    charge: NDArray[np.float32]


class Readout(Section):
    """The read-out of the detector. The numbers of wires and ticks are those of the image."""

    pitch: Positive = 0.3
    """Distance between wires, cm."""
    tick: Positive = 0.5
    """Length of a tick, microseconds."""
    speed: Positive = 0.16
    """Drift velocity of electrons, cm per microsecond."""
    field: Positive = 0.5
    """Drift field, kV/cm."""
    lifetime: Positive = 10_000.0
    """Lifetime of drifting electrons, microseconds."""
    spread: tuple[Positive, Positive] = (4.0e-6, 8.8e-6)
    """Diffusion along and across the drift, cm2 per microsecond."""
    shaping: Annotated[float, Field(gt=0, le=1.5)] = 1.0
    """Width (one sigma) of the response of electronics and filter, microseconds."""
    sharing: Annotated[float, Field(ge=0, le=0.5)] = 0.35
    """Width of the response across wires, in units of the pitch."""
    noise: Positive = 0.3
    """Noise of one pixel, thousands of electrons."""
    threshold: Positive = 1.3
    """Charge that starts a region of interest, thousands of electrons."""
    margin: Annotated[int, Field(ge=0, le=8)] = 4
    """Ticks that a region of interest extends beyond the pixels above threshold, on both sides."""

    @property
    def step(self) -> float:
        """Drift distance per tick, cm."""
        return self.speed * self.tick

    def electrons(self, energy: Floats, length: Floats) -> Floats:
        """Return the charge that escapes recombination, in thousands of electrons.

        Args:
            energy: Energy of each deposit, MeV.
            length: Length of the step of each deposit, cm.
        """
        slope = np.maximum(energy / np.maximum(length, 1e-4), 0.1) * BOX_B / (DENSITY * self.field)
        return energy * np.log(BOX_A + slope) / slope / PAIR_ENERGY / 1000

    def image(self, rng: Generator, place: Floats, charge: Floats, size: tuple[int, int]) -> ImagePixels:
        """Return the image of charges. Charges outside the image are lost.

        Args:
            rng: Random number generator of the noise.
            place: Positions of the charges (n, 3), cm.
            charge: Charges (n,), thousands of electrons.
            size: Wires and ticks of the image.
        """
        wire, tick = place[:, 2] / self.pitch, place[:, 0] / self.step
        inside = (wire > 0) & (wire < size[0]) & (tick > 0) & (tick < size[1]) & (charge > 0)
        index, value = self._noise_regions(rng, size)
        if inside.any():
            signal_index, signal = self._signal(rng, wire[inside], tick[inside], charge[inside], size)
            index, value = np.concatenate([index, signal_index]), np.concatenate([value, signal])
        index, where = np.unique(index, return_inverse=True)
        rounded = np.round(np.bincount(where, value, minlength=len(index)) / CHARGE_STEP) * CHARGE_STEP
        positive = rounded > 0
        return ImagePixels(index[positive].astype(np.int32), rounded[positive].astype(np.float32))

    def _signal(
        self, rng: Generator, wire: Floats, tick: Floats, charge: Floats, size: tuple[int, int]
    ) -> tuple[NDArray[np.int64], Floats]:
        low_wire, low_tick = int(wire.min()) - _BOX_MARGIN, int(tick.min()) - _BOX_MARGIN
        wide = int(tick.max()) + _BOX_MARGIN + 1 - low_tick
        high = int(wire.max()) + _BOX_MARGIN + 1 - low_wire
        drift = tick * self.tick
        charge = charge * np.exp(-drift / self.lifetime)
        image = self._deposit_image(wire - low_wire, tick - low_tick, drift, charge, (high, wide))
        near = np.flatnonzero(image > 0.05 * self.noise)
        value = image[near] + self._smooth_noise(rng, len(near))
        region = np.zeros(len(image), dtype=bool)
        seeds = near[value > self.threshold]
        for shift in range(-self.margin, self.margin + 1):
            region[seeds + shift] = True
        selected = region[near] & (value > 0)
        row, column = np.divmod(near[selected], wide)
        row, column, value = row + low_wire, column + low_tick, value[selected]
        inside = (row >= 0) & (row < size[0]) & (column >= 0) & (column < size[1])
        return row[inside] * size[1] + column[inside], value[inside]

    def _deposit_image(self, wire: Floats, tick: Floats, drift: Floats, charge: Floats, box: tuple[int, int]) -> Floats:
        """Return the pixels of a box (flat) over which charges are spread after a drift of `drift` microseconds."""
        along, across = (np.sqrt(2 * each * drift) for each in self.spread)
        wires = _pixel_fractions(wire, np.hypot(across / self.pitch, self.sharing), _WIRE_REACH)
        ticks = _pixel_fractions(tick, np.hypot(along / self.step, self.shaping / self.tick), _TICK_REACH)
        first = (wire.astype(np.int64) - _WIRE_REACH) * box[1] + tick.astype(np.int64) - _TICK_REACH
        total = np.zeros(box[0] * box[1])
        for shift in range(2 * _WIRE_REACH + 1):
            place = (first + shift * box[1])[:, None] + np.arange(2 * _TICK_REACH + 1)
            value = (charge * wires[:, shift])[:, None] * ticks
            begin, end = int(place[:, 0].min()), int(place[:, -1].max()) + 1
            total[begin:end] += np.bincount((place - begin).ravel(), value.ravel(), minlength=end - begin)
        return total

    def _smooth_noise(self, rng: Generator, size: int) -> Floats:
        """Return noise with the correlation length of the response, for pixels that are mostly consecutive."""
        width = self.shaping / self.tick
        taps = np.exp(-0.5 * (np.arange(-4, 5) / width) ** 2)
        drawn = rng.standard_normal(size + len(taps) - 1)
        return self.noise * np.convolve(drawn, taps / np.sqrt((taps**2).sum()), mode="valid")

    def _noise_regions(self, rng: Generator, size: tuple[int, int]) -> tuple[NDArray[np.int64], Floats]:
        """Return regions of noise alone. Their rate is that of threshold crossings of a Gaussian process."""
        width, height = self.shaping / self.tick, self.threshold / self.noise
        rate = np.exp(-0.5 * height**2) / (2 * np.pi * np.sqrt(2) * width)
        count = rng.poisson(rate * size[0] * size[1])
        peak = self.threshold + rng.exponential(self.noise / height, count)
        shift = np.arange(-self.margin, self.margin + 1)
        row, tick = rng.integers(0, size[0], count), rng.integers(0, size[1], count)
        column = tick[:, None] + shift
        shape = np.exp(-0.25 * (shift / width) ** 2)
        value = peak[:, None] * shape + self.noise * np.sqrt(1 - shape**2) * rng.standard_normal(column.shape)
        selected = (value > 0) & (column >= 0) & (column < size[1])
        return (row[:, None] * size[1] + column)[selected], value[selected]


def _pixel_fractions(place: Floats, width: Floats, reach: int) -> Floats:
    """Return the fractions of a Gaussian at `place` in the pixels within `reach` of its own; they add up to 1."""
    edges = np.floor(place)[:, None] + np.arange(-reach, reach + 2) - place[:, None]
    share = np.diff(ndtr(edges / width[:, None]), axis=1)
    return np.asarray(share / share.sum(axis=1, keepdims=True))
