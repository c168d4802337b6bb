"""Generated jets: their columns, and that a sample does not depend on how it is generated."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from clew import Table
from clew.errors import ConfigError, RecipeError
from clew.recipe import find
from clew.recipes.jets import generator
from clew.recipes.jets.generator import JetGeneratorConfig
from tests.cli import clew


@pytest.fixture(scope="module")
def generated() -> Table:
    pytest.importorskip("pythia8mc", reason="pip install 'clew[hep]'")
    pytest.importorskip("fastjet", reason="pip install 'clew[hep]'")
    return generator.make_jets(60, 1, 0, JetGeneratorConfig())


@pytest.mark.slow
def test_jets_are_in_range_and_of_all_classes(generated: Table) -> None:
    assert generated.fixed("label").tolist() == [0, 1, 2, 3, 4] * 12
    pt, eta = generated.fixed("jet_pt"), generated.fixed("jet_eta")
    assert (pt >= 500).all() and (pt <= 700).all() and (np.abs(eta) < 2).all()
    assert (generated.ragged("part_pt").values >= 0.0999).all()


@pytest.mark.slow
def test_masses_are_those_of_the_particles(generated: Table) -> None:
    middle = [float(np.median(generated.fixed("jet_mass")[generated.fixed("label") == kind])) for kind in range(5)]
    assert middle[0] < 75 and 70 < middle[2] < 95 and 80 < middle[3] < 105 and 155 < middle[4] < 190


def test_constituents_add_up_to_their_jet(generated: Table) -> None:
    pt, phi, eta = (generated.ragged(f"part_{name}") for name in ("pt", "phi", "eta"))
    for jet in range(5):
        x, y = (pt[jet] * np.cos(phi[jet])).sum(), (pt[jet] * np.sin(phi[jet])).sum()
        assert np.hypot(x, y) == pytest.approx(generated.fixed("jet_pt")[jet], rel=1e-4)
        assert (np.diff(pt[jet]) <= 0).all()
        away = np.hypot(generated.ragged("part_deta")[jet], generated.ragged("part_dphi")[jet])
        assert (
            (away < 1.6).all()
            and np.median(away) < 0.5
            and np.abs(eta[jet] - generated.fixed("jet_eta")[jet]).max() < 1.6
        )
    assert set(np.unique(generated.ragged("part_charge").values)) <= {-1, 0, 1}


@pytest.mark.slow
def test_more_jets_begin_with_the_same_ones(generated: Table) -> None:
    first_jets = generator.make_jets(7, 1, 0, JetGeneratorConfig())
    for name in ("jet_pt", "label", "jet_mass"):
        np.testing.assert_array_equal(first_jets.fixed(name), generated.fixed(name)[:7])
    np.testing.assert_array_equal(first_jets.ragged("part_pid").values, generated.slice(0, 7).ragged("part_pid").values)
    assert generator.make_jets(2, 2, 0, JetGeneratorConfig()).fixed("jet_pt")[0] != generated.fixed("jet_pt")[0]


def test_a_beginning_in_the_middle_of_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="first a multiple of 1000"):
        list(generator.write_jets(5, 1, tmp_path, first=3))
    with pytest.raises(ValueError, match="below half the energy"):
        JetGeneratorConfig(pt=(700, 500))


def test_without_pythia_one_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pythia8mc", None)
    generator.load_generators.cache_clear()
    with pytest.raises(RecipeError, match=r"pip install 'clew\[hep\]'"):
        list(find("jets")().generate(5, 1, tmp_path))
    outcome = clew("data", "generate", "jets", "--events", "5", "--output", str(tmp_path), "--workers", "1")
    generator.load_generators.cache_clear()
    assert outcome.code == 2 and outcome.err.count("\n") == 1 and "pip install 'clew[hep]'" in outcome.err
