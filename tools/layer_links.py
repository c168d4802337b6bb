"""Measure which layers of ACTS' GenericDetector particles cross one after the other: writes layer_links.csv of clew.

The sample is seed 1 of 60,000 muons of 0.5 to 50 GeV and abs(eta) < 2.5. Needs pyacts (the extra `hep`), and takes
less than a minute.
"""

from __future__ import annotations

from clew.recipes.tracking import layers
from clew.recipes.tracking.acts import simulate_acts
from clew.recipes.tracking.particle_gun import ParticleGun

EVENTS, MUONS = 30, 2000


def main() -> None:
    gun = ParticleGun(particles="muons", multiplicity=(MUONS, MUONS))
    links, tracks = layers.measure_links(simulate_acts(EVENTS, 1, gun=gun))
    layers.write_links(layers.LINK_FILE, links, tracks)


if __name__ == "__main__":
    main()
