"""Realistic bugs that once survived the tests (issue 28), and the tests that notice them now."""

from __future__ import annotations

from tests.mutation.planted_data import BENCH, DATA, INFERENCE, RECIPES, TUNING
from tests.mutation.planted_training import ASYNCHRONOUS, RUNS, SERVICE, TRAINING

BUGS = (*SERVICE, *RUNS, *ASYNCHRONOUS, *TRAINING, *DATA, *INFERENCE, *TUNING, *BENCH, *RECIPES)
