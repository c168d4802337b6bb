"""Storms: commands of clew under faults, again and again from a seed, and what must be true afterwards.

    python -m tests.chaos --seed 1 --minutes 10 --json chaos.json

`faults` has what can go wrong, `scenarios` what runs meanwhile, `storm` brings them together.
"""
