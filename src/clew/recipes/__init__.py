"""Recipes that come with clew. They use only its public names, as your own would."""
