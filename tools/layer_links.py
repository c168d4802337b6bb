"""Measure which layers of ACTS' GenericDetector particles cross one after the other: writes layer_links.csv of clew.

The sample is seed 1 of 120,000 muons of 0.5 to 50 GeV (log-uniform) up to abs(eta) = 3.5. Needs pyacts (the extra
`hep`), and takes about a minute.
"""

from __future__ import annotations

import numpy as np
from numpy.random import Generator

from clew.recipes.tracking import layers
from clew.recipes.tracking.acts import simulate_acts
from clew.recipes.tracking.particle_gun import BEAM_LENGTH, MUON_PT, GunParticles, ParticleGun

EVENTS, MUONS, ETA = 60, 2000, 3.5


class WideGun(ParticleGun):
    """Muons in a wider range of eta than those of the events."""

    def generate(self, rng: Generator) -> GunParticles:
        pt = np.exp(rng.uniform(np.log(MUON_PT[0]), np.log(MUON_PT[1]), MUONS))
        phi = rng.uniform(-np.pi, np.pi, MUONS)
        momentum = np.stack([pt * np.cos(phi), pt * np.sin(phi), pt * np.sinh(rng.uniform(-ETA, ETA, MUONS))], axis=1)
        position = rng.normal(0, 1, (MUONS, 3)) * (0, 0, BEAM_LENGTH)
        return GunParticles(13 * rng.choice([-1, 1], MUONS), position, momentum)


def main() -> None:
    links, tracks = layers.measure_links(simulate_acts(EVENTS, 1, gun=WideGun()))
    layers.write_links(layers.LINK_FILE, links, tracks)


if __name__ == "__main__":
    main()
