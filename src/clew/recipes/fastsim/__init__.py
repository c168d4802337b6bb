"""Fast simulation of calorimeters: generate the shower of a particle from its energy.

Read the files in this order:

    columns.py        the columns of a shower
    settings.py       the configuration of the recipe
    recipe.py         the recipe: which function does which step
    geometry.py       layers and voxels: data sets of the CaloChallenge, binning files, regular grids
    shower_files.py   readers and the writer of shower files
    generate/         showers without files of others (start with generate/__init__.py)
    networks.py       which network `model.kind` names, and its tables (particles.py, seeds.py, noise.py)
    gan.py            the adversarial networks
    shower_flow.py    flow matching on latents (layer_scaler.py, voxel_scaler.py, quantile_tables.py, flow_networks.py)
    features.py       layer energies, centres and widths of showers
    metrics.py        generated against true showers
    quality/          classifiers and distances of two sources (start with quality/__init__.py)
    display.py        pictures of showers
"""

from clew.recipes.fastsim.recipe import FastSimulation
from clew.recipes.fastsim.settings import FastSimulationConfig

__all__ = ["FastSimulation", "FastSimulationConfig"]
