"""Jet tagging: the origin of a jet, from its constituents, its image, or a small number of features.

Read in this order:

1. `recipe.py`: the recipe `jets` (constituents); `recipe_images.py` (`jetimages`) and `recipe_features.py`
   (`jetfeatures`) are the other two
2. `tagging_recipe.py`: what the three recipes share; `settings.py`: their settings
3. `inputs.py`: from files to columns, classes and weights; `imagefile.py`: files of images; `images.py`: constituents
   to images; `generator.py`: synthetic jets from Pythia and fastjet; `toptagging.py`: the layout of the public
   top-tagging files
4. `network.py`, `edge_convolution.py`, `cloud.py`: the networks
5. `metrics.py`, `roc_metrics.py`, `rejection_plot.py`: metrics and plots

YAML files of settings are in `configs/`: `clew init NAME --like jets/gru` copies one.
"""

from clew.recipes.jets.recipe import Jets
from clew.recipes.jets.recipe_features import JetFeatures
from clew.recipes.jets.recipe_images import JetImages
from clew.recipes.jets.settings import JetFeaturesConfig, JetImagesConfig, JetsConfig

__all__ = ["JetFeatures", "JetFeaturesConfig", "JetImages", "JetImagesConfig", "Jets", "JetsConfig"]
