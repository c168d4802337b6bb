"""Recipes from data configurations of weaver. The public names are in `clew.weaver`."""
