"""Recipes that come with clew. They use only its public names, as a recipe of yours would.

Start with `tagger.py`: a complete recipe in one file, written to be read from top to bottom. The folders hold larger
recipes, and the `__init__.py` of each says what to read in which order:

- `tracking/`: hits to tracks (the recipes `tracking`, `hitgraph`, `tracknet` and `triplets`)
- `jets/`: the origin of a jet (`jets`, `jetimages` and `jetfeatures`)
- `particleflow/`: towers and tracks to particles
- `lartpc/`: images of a liquid-argon time projection chamber
- `fastsim/`: showers in a calorimeter, generated from the energy of a particle

clew finds them through the entry points in `pyproject.toml`, the same way as the recipes of other packages.
"""
