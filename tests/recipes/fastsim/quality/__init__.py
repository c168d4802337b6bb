"""Tests of the comparison of two sources of showers."""
