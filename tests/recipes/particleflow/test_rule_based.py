"""Rule-based particle flow, on events made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from clew import Ragged, Table
from clew.recipes.particleflow import RuleBasedConfig, generator, metrics, reconstruct_by_rule
from clew.recipes.particleflow.columns import CHARGED_HADRON, ELECTRON, MUON, NEUTRAL_HADRON, NONE, PHOTON
from clew.recipes.particleflow.generator import ParticleFlowGeneratorConfig
from clew.recipes.particleflow.rule_based import link_tracks


def tower(em: float, had: float, eta: float = 0.05, phi: float = 0.05) -> list[float]:
    energy = em + had
    return [1, energy / np.cosh(eta), eta, np.sin(phi), np.cos(phi), energy, em, had, 0, 0, 0, 0]


def track(p: float, eta: float = 0.05, phi: float = 0.05, *, muon: bool = False, electron: bool = False) -> list[float]:
    """A track that leaves the tracker at eta and phi, but starts in another direction."""
    pt = p / np.cosh(eta)
    return [2, pt, eta, np.sin(phi + 1), np.cos(phi + 1), p, eta, np.sin(phi), np.cos(phi), -1, muon, electron]


def event(*rows: list[float]) -> Ragged:
    return Ragged.from_lengths(np.array(rows, dtype=np.float32), [len(rows)])


def classes(elements: Ragged, settings: RuleBasedConfig | None = None) -> list[int]:
    pid: list[int] = reconstruct_by_rule(elements, settings).ragged("pid").values.tolist()
    return pid


def test_a_track_is_its_particle() -> None:
    table = reconstruct_by_rule(event(track(10.0), track(10.0, muon=True), track(10.0, electron=True)))
    assert table.ragged("pid").values.tolist() == [CHARGED_HADRON, MUON, ELECTRON]
    assert table.ragged("charge").values.tolist() == [-1, -1, -1]
    assert table.ragged("energy").values.tolist() == pytest.approx([10.001, 10.0006, 10], abs=1e-4)
    assert table.ragged("phi").values[0] == pytest.approx(1.05)


def test_the_parts_of_a_tower_tell_photons_from_neutral_hadrons() -> None:
    separate = event(tower(20, 0), tower(0, 20), tower(0, 5))
    assert classes(separate) == [PHOTON, NEUTRAL_HADRON, NONE]  # the last one is below the energy of targets
    combined = reconstruct_by_rule(event(tower(20, 5), tower(5, 20, 1.0)))
    assert combined.ragged("pid").values.tolist() == [PHOTON, NEUTRAL_HADRON]
    assert combined.ragged("energy").values.tolist() == pytest.approx([25, 25])


def test_the_momentum_of_pointing_tracks_is_subtracted() -> None:
    elements = event(tower(0, 100), track(40.0), track(20.0), track(30.0, phi=1.0), track(30.0, muon=True))
    table = reconstruct_by_rule(elements)
    assert table.ragged("pid").values[0] == NEUTRAL_HADRON
    assert table.ragged("energy").values[0] == pytest.approx(40)
    links = link_tracks(elements)
    assert links.hadrons[0] == 2 and links.hadron_momentum[0] == pytest.approx(60) and not links.hadrons[1:].any()


def test_a_tower_that_its_tracks_explain_is_none() -> None:
    assert classes(event(tower(0, 60), track(50.0)))[0] == NONE  # 10 GeV are less than 2 standard deviations
    assert classes(event(tower(0, 60), track(50.0)), RuleBasedConfig(significance=0.5))[0] == NEUTRAL_HADRON
    assert classes(event(tower(0, 60), track(80.0)))[0] == NONE
    assert classes(event(tower(30, 0), track(30.0, electron=True)))[0] == NONE
    assert classes(event(tower(30, 0), track(30.0)))[0] == PHOTON  # hadrons leave nothing in the electromagnetic part


def test_tracks_point_at_towers_of_their_own_event() -> None:
    rows = [tower(0, 100), track(90.0), tower(0, 100)]
    elements = Ragged.from_lengths(np.array(rows, dtype=np.float32), [2, 1])
    assert classes(elements) == [NONE, CHARGED_HADRON, NEUTRAL_HADRON]
    assert reconstruct_by_rule(elements).ragged("energy").values[2] == pytest.approx(100)


def test_an_event_without_elements_has_no_particles() -> None:
    table = reconstruct_by_rule(Ragged.from_lengths(np.zeros((0, 12), dtype=np.float32), [0, 0]))
    assert len(table) == 2 and len(table.ragged("pid").values) == 0


def test_the_rule_classifies_generated_events_and_its_metrics_are_by_region() -> None:
    table: Table = generator.make_events(4, 1, 0, ParticleFlowGeneratorConfig(kind="parametric", pileup=20))
    settings = metrics.ParticleFlowMetricsConfig()
    results = metrics.make_metrics(table, reconstruct_by_rule(table.ragged("elements")), settings)
    values = {name: metric.value for name, metric in results.items()}
    assert 0.9 < values["accuracy"] == metrics.rule_metrics(table, settings)["accuracy"].value < 1
    assert values["outside/efficiency/neutral_hadron"] > values["inside/efficiency/neutral_hadron"]
    assert values["inside/efficiency/charged_hadron"] > 0.9 > values["inside/energy_resolution/neutral_hadron"] > 0
    inside, outside = results["inside/accuracy"], results["outside/accuracy"]
    assert (inside + outside).value == pytest.approx(values["accuracy"])
