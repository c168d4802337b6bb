"""Particle flow: reconstruct the particles of an event from its calorimeter towers and tracks.

Read the files in this order:

    columns.py            the columns of an event and the classes of particles
    settings.py           the configuration of the recipe
    recipe.py             the recipe: which function does which step
    generator.py          synthetic events (parametric.py, pythia.py, pileup.py)
    detector.py           the detector of synthetic events (calorimeter.py), and the targets (targets.py)
    event_files.py        the reader of a file (reader_base.py, delphes.py, edm4hep.py, pfnano.py)
    links.py              features of an element from the tracks and towers that it is linked to
    networks.py           the networks by name (graph_network.py, attention_network.py)
    decoding.py           the input encoding and the output heads, shared by all networks
    binning.py            the bins of the graph network: locality-sensitive hashing
    convolution.py        the graph convolution within bins
    kernels/              the graph network in Triton, for GPUs
    loss.py               the loss
    rule_based.py         particle flow by rules, without a network: the baseline
    metrics.py            the metrics (metric_types.py, jet_metrics.py)
    display.py            event displays
"""

from clew.recipes.particleflow.recipe import ParticleFlow
from clew.recipes.particleflow.rule_based import RuleBasedConfig, reconstruct_by_rule
from clew.recipes.particleflow.settings import ParticleFlowConfig

__all__ = ["ParticleFlow", "ParticleFlowConfig", "RuleBasedConfig", "reconstruct_by_rule"]
