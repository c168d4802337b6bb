"""Where a model comes from: a recipe, columns and a module, a Keras file, an exported program."""
