"""Synthetic events of single particles in liquid argon.

Files and columns say that the events are synthetic. The events are frozen: VERSION is part of file names and of every
event, and every change that changes an event increases it. Units inside: MeV, cm, microseconds, thousands of electrons.

Read the files in this order:

    config.py              what is generated
    events.py              from primary particles to tables and files
    particles.py           kinds of particles, stacks of particles, directions
    transport.py           follows all particles until they stop, decay or leave
    charged_transport.py   charged particles: energy loss, multiple scattering, delta rays
    liquid_argon.py        energy loss, ranges and cross-sections in liquid argon
    showers.py             photons, electrons and positrons
    hadrons.py             hadrons that collide with nuclei
    decays.py              decays

`readout.py` of the recipe turns the energy deposits into images.
"""
