"""Sources of a model: columns and a module, a Keras file, an exported program of torch."""
