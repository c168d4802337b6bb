"""Names of losses that other packages use. This module does not import torch."""

KERAS_NAMES = {
    "categorical_crossentropy": "cross_entropy",
    "sparse_categorical_crossentropy": "cross_entropy",
    "binary_crossentropy": "binary_cross_entropy",
    "mean_squared_error": "mse",
    "mean_absolute_error": "mae",
}
"""The names that Keras uses for some of them."""
