"""Particles from the outputs of a network: which energies are measured, and when a tower is no particle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from clew import Ragged, Table
from clew.recipes.particleflow import ParticleFlow
from clew.recipes.particleflow.columns import CHARGED_HADRON, ELEMENTS, NEUTRAL_HADRON, NONE, PHOTON
from clew.recipes.particleflow.settings import ParticleFlowConfig
from tests.recipes.particleflow.test_rule_based import event, tower, track


def reconstructed(elements: Ragged, logits: list[list[float]], **reconstruction: Any) -> Table:
    """The particles of a network that predicts 7 GeV for every element."""
    config = ParticleFlowConfig.model_validate({"reconstruction": reconstruction})
    momentum = np.tile([np.log1p(7), 0.05, 0, 1, np.log1p(7)], (len(logits), 1))
    outputs = {"class": np.array(logits), "momentum": momentum, "charge": np.zeros(len(logits))}
    return ParticleFlow(config).reconstruct(Table({ELEMENTS: elements}), outputs)


def named(kind: int, probability: float = 0.99) -> list[float]:
    """Logits of an element that is of a class with this probability, else (nearly always) a neutral hadron."""
    values = np.full(6, 1e-9)
    values[NEUTRAL_HADRON] = 1 - probability
    values[kind] = probability
    return list(np.log(values))


def test_the_energy_of_towers_is_learned_or_what_tracks_leave() -> None:
    elements = event(tower(0, 100), track(60.0), tower(20, 0, 1.0))
    classes = [named(NEUTRAL_HADRON), named(CHARGED_HADRON), named(PHOTON)]
    assert reconstructed(elements, classes).ragged("energy").values.tolist() == pytest.approx([7, 7, 7])
    table = reconstructed(elements, classes, tower_energy="measured")
    assert table.ragged("energy").values.tolist() == pytest.approx([40, 7, 20])
    assert table.ragged("pt").values.tolist() == pytest.approx([40 / np.cosh(0.05), 7, 20 / np.cosh(0.05)])


def test_a_tower_is_none_only_above_the_probability() -> None:
    elements = event(tower(0, 20), tower(0, 20, 1.0), track(10.0))
    logits = [named(NONE, 0.6), named(NONE, 0.8), named(NONE, 0.6)]
    assert reconstructed(elements, logits).ragged("pid").values.tolist() == [NONE] * 3
    pid = reconstructed(elements, logits, min_none_probability=0.7).ragged("pid").values.tolist()
    assert pid == [NEUTRAL_HADRON, NONE, NONE], "the threshold is for towers"
