"""Liquid-argon time projection chambers: identify the particle in an image of wires and ticks.

Read the files in this order:

    columns.py        the columns of an event and the classes of particles
    settings.py       the configuration of the recipe
    recipe.py         the recipe: which function does which step
    generate/         synthetic events (start with generate/__init__.py)
    readout.py        from energy deposits to an image: drift, wires, noise
    event_files.py    the readers of image files
    images.py         images as lists of pixels: conversion, checks, shrinking
    network.py        the network
    augmentation.py   random changes of training images
    ops.py            one block of the network as one torch operation
    kernels/          the blocks on CPUs and GPUs (start with kernels/__init__.py)
    metrics.py        the metrics
    display.py        event displays
"""

from clew.recipes.lartpc.recipe import LArTPC
from clew.recipes.lartpc.settings import LArTPCConfig

__all__ = ["LArTPC", "LArTPCConfig"]
