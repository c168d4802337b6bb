"""Tests of clew.data.writers."""
