"""Benchmark commands."""
