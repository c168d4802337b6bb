"""From energy in the argon to an image: recombination, drift, wires, electronics, noise, zero suppression.

One plane of collection wires, along y; wires are numbered along z, ticks count the drift along x from the wires. The
image is what signal processing leaves: charge after deconvolution, zero outside regions of interest.
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
"""MeV for an electron and an ion."""
BOX_A, BOX_B = 0.93, 0.212
"""Of the modified box model, as ArgoNeuT measured: no unit, and (kV/cm)(g/cm2)/MeV."""
DENSITY = 1.396
QUANTUM = 1 / 32
"""Thousands of electrons: charges are whole multiples."""
_WIRES, _TICKS, _AROUND = 2, 9, 14
"""Pixels to each side that a deposit reaches, along wires and ticks; margin of the box that an event is drawn in."""


class Pixels(NamedTuple):
    """The pixels of an image that are not zero: wire * columns + tick, increasing; charge, thousands of electrons."""

    place: NDArray[np.int32]
    charge: NDArray[np.float32]


class Readout(Section):
    """The detector's read-out. Wires and ticks are as many as the image has."""

    pitch: Positive = 0.3
    """cm from wire to wire."""
    tick: Positive = 0.5
    """Microseconds."""
    speed: Positive = 0.16
    """Of drifting electrons, cm per microsecond."""
    field: Positive = 0.5
    """kV/cm."""
    lifetime: Positive = 10_000.0
    """Of drifting electrons, microseconds."""
    spread: tuple[Positive, Positive] = (4.0e-6, 8.8e-6)
    """Diffusion along and across the drift, cm2 per microsecond."""
    shaping: Annotated[float, Field(gt=0, le=1.5)] = 1.0
    """Microseconds: width (one sigma) of the response of electronics and filter."""
    sharing: Annotated[float, Field(ge=0, le=0.5)] = 0.35
    """Pitches: width of the response across wires."""
    noise: Positive = 0.3
    """Of one pixel, thousands of electrons."""
    threshold: Positive = 1.3
    """What begins a region of interest, thousands of electrons."""
    margin: Annotated[int, Field(ge=0, le=8)] = 4
    """Ticks that a region has on both sides of what is above threshold."""

    @property
    def step(self) -> float:
        """cm of drift in a tick."""
        return self.speed * self.tick

    def electrons(self, energy: Floats, length: Floats) -> Floats:
        """Thousands of electrons that escape recombination, by MeV and the cm they were left in."""
        slope = np.maximum(energy / np.maximum(length, 1e-4), 0.1) * BOX_B / (DENSITY * self.field)
        return energy * np.log(BOX_A + slope) / slope / PAIR_ENERGY / 1000

    def image(self, rng: Generator, place: Floats, charge: Floats, size: tuple[int, int]) -> Pixels:
        """The image of charges (thousands of electrons) at places (n, 3) in cm; what falls outside is lost."""
        wire, tick = place[:, 2] / self.pitch, place[:, 0] / self.step
        seen = (wire > 0) & (wire < size[0]) & (tick > 0) & (tick < size[1]) & (charge > 0)
        index, value = self._fakes(rng, size)
        if seen.any():
            own, signal = self._signal(rng, wire[seen], tick[seen], charge[seen], size)
            index, value = np.concatenate([index, own]), np.concatenate([value, signal])
        index, where = np.unique(index, return_inverse=True)
        whole = np.round(np.bincount(where, value, minlength=len(index)) / QUANTUM) * QUANTUM
        kept = whole > 0
        return Pixels(index[kept].astype(np.int32), whole[kept].astype(np.float32))

    def _signal(
        self, rng: Generator, wire: Floats, tick: Floats, charge: Floats, size: tuple[int, int]
    ) -> tuple[NDArray[np.int64], Floats]:
        low_wire, low_tick = int(wire.min()) - _AROUND, int(tick.min()) - _AROUND
        wide = int(tick.max()) + _AROUND + 1 - low_tick
        high = int(wire.max()) + _AROUND + 1 - low_wire
        drift = tick * self.tick
        charge = charge * np.exp(-drift / self.lifetime)
        drawn = self._drawn(wire - low_wire, tick - low_tick, drift, charge, (high, wide))
        near = np.flatnonzero(drawn > 0.05 * self.noise)
        value = drawn[near] + self._smooth_noise(rng, len(near))
        region = np.zeros(len(drawn), dtype=bool)
        seeds = near[value > self.threshold]
        for shift in range(-self.margin, self.margin + 1):
            region[seeds + shift] = True
        kept = region[near] & (value > 0)
        row, column = np.divmod(near[kept], wide)
        row, column, value = row + low_wire, column + low_tick, value[kept]
        inside = (row >= 0) & (row < size[0]) & (column >= 0) & (column < size[1])
        return row[inside] * size[1] + column[inside], value[inside]

    def _drawn(self, wire: Floats, tick: Floats, drift: Floats, charge: Floats, box: tuple[int, int]) -> Floats:
        """Charges that drifted so many microseconds, spread over the pixels of a box, flat."""
        along, across = (np.sqrt(2 * each * drift) for each in self.spread)
        wires = _shares(wire, np.hypot(across / self.pitch, self.sharing), _WIRES)
        ticks = _shares(tick, np.hypot(along / self.step, self.shaping / self.tick), _TICKS)
        first = (wire.astype(np.int64) - _WIRES) * box[1] + tick.astype(np.int64) - _TICKS
        total = np.zeros(box[0] * box[1])
        for shift in range(2 * _WIRES + 1):
            place = (first + shift * box[1])[:, None] + np.arange(2 * _TICKS + 1)
            value = (charge * wires[:, shift])[:, None] * ticks
            begin, end = int(place[:, 0].min()), int(place[:, -1].max()) + 1
            total[begin:end] += np.bincount((place - begin).ravel(), value.ravel(), minlength=end - begin)
        return total

    def _smooth_noise(self, rng: Generator, size: int) -> Floats:
        """Noise as wide as the response, along pixels that mostly follow each other."""
        width = self.shaping / self.tick
        taps = np.exp(-0.5 * (np.arange(-4, 5) / width) ** 2)
        drawn = rng.standard_normal(size + len(taps) - 1)
        return self.noise * np.convolve(drawn, taps / np.sqrt((taps**2).sum()), mode="valid")

    def _fakes(self, rng: Generator, size: tuple[int, int]) -> tuple[NDArray[np.int64], Floats]:
        """Regions that noise alone makes: as many as a Gaussian process of this width crosses the threshold."""
        width, height = self.shaping / self.tick, self.threshold / self.noise
        rate = np.exp(-0.5 * height**2) / (2 * np.pi * np.sqrt(2) * width)
        many = rng.poisson(rate * size[0] * size[1])
        peak = self.threshold + rng.exponential(self.noise / height, many)
        shift = np.arange(-self.margin, self.margin + 1)
        row, tick = rng.integers(0, size[0], many), rng.integers(0, size[1], many)
        column = tick[:, None] + shift
        shape = np.exp(-0.25 * (shift / width) ** 2)
        value = peak[:, None] * shape + self.noise * np.sqrt(1 - shape**2) * rng.standard_normal(column.shape)
        kept = (value > 0) & (column >= 0) & (column < size[1])
        return (row[:, None] * size[1] + column)[kept], value[kept]


def _shares(place: Floats, width: Floats, reach: int) -> Floats:
    """Of a Gaussian at `place`, the shares of the pixels up to `reach` from its own; they add up to 1."""
    edges = np.floor(place)[:, None] + np.arange(-reach, reach + 2) - place[:, None]
    share = np.diff(ndtr(edges / width[:, None]), axis=1)
    return np.asarray(share / share.sum(axis=1, keepdims=True))
