"""Damaged and hostile inputs for everything that clew reads: files, messages, settings, commands.

`python -m tests.fuzz --only root --inputs 100000 --seed 1 --workers 16` runs many by hand; `test_fuzz.py` runs a
short part of each target in the ordinary tests. Input number N of a seed is always the same bytes.
"""
