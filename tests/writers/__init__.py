"""Tests of clew.writers."""
