"""A short part of every target: a clear error or success, never a traceback, a crash, a hang or unbounded memory."""

from __future__ import annotations

import pytest

from tests.fuzz.harness import BAD, TARGETS, fuzz

INPUTS = {"cli": 12, "http": 30, "http-get": 60, "socket": 60}
"""Inputs of slow targets; the others have 150."""


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_damaged_and_hostile_inputs_are_refused_in_one_line(name: str) -> None:
    numbers = range(INPUTS.get(name, 150))
    outcome = fuzz(TARGETS[name], numbers, seed=1)
    assert sum(outcome.counts.values()) == len(numbers)
    assert not outcome.bad, outcome.bad
    assert outcome.counts["refused"] and all(kind in (*BAD, "read", "refused") for kind in outcome.counts)
