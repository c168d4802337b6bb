"""Tests of the recipe lartpc."""
