"""Showers without files of others.

Read the files in this order:

    config.py        what is generated
    showers.py       from settings to files of showers
    parametric.py    parametrised showers (Grindhammer and Peters, hep-ex/0001020), in NumPy
    materials.py     the calorimeter of tungsten and silicon, and its numbers
    geant4.py        showers of Geant4 (geant4_simulation.py is its process, geant4_physics.py has the processes,
                     geant4_readout.py adds energies to voxels)
"""
