"""Random numbers as a function of a seed, and the normal distribution, in operations that every export format has.

An exported generator needs no source of random numbers: it takes one seed per shower. The same seed gives the same
noise on a processor, on a GPU and in ONNX.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_SIZE = 1 << 30
"""States are below it, so that products fit into 63 bits."""
_HALF = 1 << 15
_MULTIPLIER = 668_265_261


def normal_noise(seeds: Tensor, count: int) -> Tensor:
    """Return standard normal numbers (n, count) that depend on the seed (n, int64) and the position only."""
    low, high = (seeds % _SIZE)[:, None], (seeds // _SIZE)[:, None]
    place = torch.arange(1, count + 1, device=seeds.device) * _MULTIPLIER % _SIZE
    state = low + place
    for key in (high, low, high + place):
        state = _mix(state) + key
    return normal_quantile(((_mix(state) // 64).float() + 0.5) * (64 / _SIZE))


def _mix(state: Tensor) -> Tensor:
    """Return a permutation of the numbers below _SIZE: x (2 x + 1), as in the cipher RC6, with both halves swapped."""
    state = state % _SIZE
    state = state * (2 * state + 1) % _SIZE
    return state % _HALF * _HALF + state // _HALF


def normal_probability(value: Tensor) -> Tensor:
    """Return the probability that a standard normal number is below a value."""
    return 0.5 * (1 + torch.erf(value * math.sqrt(0.5)))


def normal_quantile(probability: Tensor) -> Tensor:
    """Return the standard normal number with this probability below it, within 1e-6 (Wichura, algorithm AS 241)."""
    centre = probability - 0.5
    inner = 0.180625 - centre * centre
    middle = centre * _ratio(
        inner, (3.3871327179, 50.434271938, 159.29113202, 59.109374720), (17.895169469, 78.757757664, 67.187563600)
    )
    tail = (-torch.minimum(probability, 1 - probability).clamp(min=1e-30).log()).sqrt()
    near = _ratio(tail - 1.6, (1.4234372777, 2.7568153900, 1.3067284816, 0.17023821103), (0.73700164250, 0.12021132975))
    far = _ratio(tail - 5, (6.6579051150, 3.0812263860, 0.42868294337, 0.017337203997), (0.24197894225, 0.012258202635))
    outer = torch.where(tail <= 5, near, far) * torch.sign(centre)
    return torch.where(centre.abs() <= 0.425, middle, outer)


def _ratio(value: Tensor, above: tuple[float, ...], below: tuple[float, ...]) -> Tensor:
    """Return the ratio of two polynomials. The lowest coefficient of the second one is 1."""
    return _polynomial(value, above) / _polynomial(value, (1.0, *below))


def _polynomial(value: Tensor, coefficients: tuple[float, ...]) -> Tensor:
    total = torch.full_like(value, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = total * value + coefficient
    return total
