"""Track finding: hits to tracks, by four recipes that share readers, generators, metrics and event displays.

Read in this order:

1. `recipe.py`: the recipe `tracking`; `recipe_hitgraph.py`, `recipe_tracknet.py` and
   `recipe_triplets.py` are the others
2. `settings.py`: their settings; `geometry.py`: the detector, and hits in its coordinates
3. `track_finder.py`: what the recipes share
4. samples: `segments.py` (segment graphs), `hitgraph.py` (hit graphs), `sequences.py` (prefixes of tracks), built
   from `pairs.py` (pairs of hits that pass cuts) and labelled by `truth.py`
5. networks: `network.py` (GraphNet), `interaction.py` (interaction network), `tracknet.py` with `continuation.py`
6. results: `tracks.py` (scores to tracks), `overlaps.py`, `matching.py` (found tracks against true ones), `metrics.py`,
   `plots.py`, `display.py`
7. events: `simulate_bes3.py`, `simulate_bmn.py`, `acts.py` (with `acts_chain.py`, `particle_gun.py`); other files:
   `trackml.py`, `graphfile.py`; the Kalman filter of ACTS as a baseline in `acts_baseline.py`
8. the whole detector at pile-up: `layers.py` (layers and their links), `triplets.py` (triplet graphs) with
   `triplet_kernels.py`, `chains.py` (scores to tracks), `sectors.py` and `whole_event.py` (large events in pieces)
"""

from clew.recipes.tracking.recipe import Tracking
from clew.recipes.tracking.recipe_hitgraph import HitGraph
from clew.recipes.tracking.recipe_tracknet import TrackNet
from clew.recipes.tracking.recipe_triplets import Triplets
from clew.recipes.tracking.settings import HitGraphConfig, TrackingConfig, TrackNetConfig, TripletsConfig

__all__ = [
    "HitGraph",
    "HitGraphConfig",
    "TrackNet",
    "TrackNetConfig",
    "Tracking",
    "TrackingConfig",
    "Triplets",
    "TripletsConfig",
]
