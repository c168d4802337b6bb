"""Files of other experiments: the public Delphes set as written by clew, and real files of FCC and CMS."""

from __future__ import annotations

import bz2
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clew import Dataset, Table, prepare, readers
from clew.recipe import find
from clew.recipes.particleflow import event_files, generator, pfnano
from clew.recipes.particleflow.columns import CHARGED_HADRON, ELECTRON, MUON, NEUTRAL_HADRON, PHOTON, TOWER, TRACK
from clew.recipes.particleflow.distance_matching import match_tracks
from clew.recipes.particleflow.generator import ParticleFlowGeneratorConfig
from clew.recipes.particleflow.targets import VisibleParticles
from tests.cli import clew, done
from tests.data.readers import problem, public, whole, write_root

SMALL = ParticleFlowGeneratorConfig(kind="parametric", pileup=4)


def write_delphes(path: Path, generated: Table, **changed: Any) -> Path:
    """Events in the form of the public set."""
    x, y = list(generated.ragged("elements")), list(generated.ragged("targets"))
    data = pickle.dumps({"X": x, "ygen": y, "ycand": [each * 2 for each in y], **changed})
    path.write_bytes(bz2.compress(data) if path.suffix == ".bz2" else data)
    return path


@pytest.fixture(scope="module")
def generated() -> Table:
    return generator.make_events(6, 1, 0, SMALL)


@pytest.fixture(scope="module")
def fcc() -> Table:
    return whole(public("particleflow/coffea/test_FCC_Winter2023.root"), kind="edm4hep")


@pytest.fixture(scope="module")
def cms() -> Table:
    return whole(public("particleflow/coffea/pfnano.root"), kind="pfnano")


@pytest.mark.parametrize("name", ["ttbar.pkl", "ttbar.pkl.bz2"])
def test_delphes_pickles_are_read_as_they_are(tmp_path: Path, generated: Table, name: str) -> None:
    path = write_delphes(tmp_path / name, generated)
    table = next(iter(event_files.read_events(str(path))))
    for column in ("elements", "targets"):
        np.testing.assert_array_equal(table.ragged(column).values, generated.ragged(column).values)
    assert table.ragged("elements").offsets is table.ragged("targets").offsets
    candidates = whole(path, kind="delphes", candidates=True).ragged("candidates")
    np.testing.assert_array_equal(candidates.values, generated.ragged("targets").values * 2)


def test_malformed_delphes_files_are_reported(tmp_path: Path, generated: Table) -> None:
    x, y = list(generated.ragged("elements")), list(generated.ragged("targets"))
    cases: list[tuple[dict[str, Any], str]] = [
        ({"X": [each[:, :5] for each in x]}, "entry 'X' has items of shape (5,), expected (12,)"),
        ({"ygen": [y[0][:-1], *y[1:]]}, f"event 0: {len(y[0]) - 1} rows in 'ygen', {len(y[0])} in 'X'"),
        ({"X": os.system}, "holds 'posix.system', which event files do not need; nothing of the file was executed"),
    ]
    for changed, message in cases:
        assert problem(write_delphes(tmp_path / "a.pkl", generated, **changed), "delphes") == message


def test_files_without_truth_can_be_read_to_predict(tmp_path: Path, generated: Table) -> None:
    (tmp_path / "a.pkl").write_bytes(pickle.dumps({"X": list(generated.ragged("elements"))}))
    assert problem(tmp_path / "a.pkl", "delphes").startswith("no entry 'ygen'")
    table = readers.read(str(tmp_path / "a.pkl"), "delphes").with_optional(["targets"])[0]
    assert "targets" not in table and len(table) == 6


def test_a_file_is_prepared_and_inspected(tmp_path: Path, generated: Table) -> None:
    write_delphes(tmp_path / "ttbar.pkl.bz2", generated)
    output = tmp_path / "dataset"
    done("prepare", "particleflow", "--input", tmp_path / "ttbar.pkl.bz2", "--output", output, "--workers", "1")
    assert sum(Dataset(output).splits.values()) == 6
    shown = done("data", "inspect", output)
    assert "elements" in shown and "targets" in shown
    done("data", "inspect", output, "--html", tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size > 1000


def test_a_hostile_file_is_one_line_for_the_user(tmp_path: Path, generated: Table) -> None:
    path = write_delphes(tmp_path / "evil.pkl", generated, more=os.system)
    outcome = clew("prepare", "particleflow", "--input", path, "--output", tmp_path / "out", "--workers", "1")
    assert outcome.code == 2 and outcome.err.count("\n") == 1
    assert "evil.pkl" in outcome.err and "nothing of the file was executed" in outcome.err


def test_the_reader_can_be_named_and_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "a.root"
    write_root(path, {"x": [[1.0, 2.0]]}, tree="Events")
    assert problem(path, "pfnano").startswith("no branch 'PFCands_pt'")
    outcome = clew("prepare", "particleflow", "--input", path, "--set", "data.reader=pfnanoo")
    assert outcome.code == 2 and "data.reader" in outcome.err
    write_root(path, {"x": [[1.0, 2.0]]}, tree="other")
    outcome = clew("prepare", "particleflow", "--input", path, "--output", tmp_path / "out", "--workers", "1")
    assert outcome.code == 2 and "a.root: a ROOT file without a tree of a known name: 'events' (edm4hep)" in outcome.err


@pytest.mark.slow
def test_fcc_elements_are_reconstructed_particles(fcc: Table) -> None:
    x, y = fcc.ragged("elements").values, fcc.ragged("targets").values
    track, pid = x[:, 0] == TRACK, y[:, 0]
    assert len(fcc) == 100 and fcc.ragged("elements").lengths[:3].tolist() == [60, 79, 55]
    assert np.isin(pid[track], (CHARGED_HADRON, ELECTRON, MUON)).all() and (pid[~track] == PHOTON).mean() > 0.9
    assert (x[track, 9] == y[track, 1]).all()
    np.testing.assert_array_equal(x[track, 10] == 1, pid[track] == MUON)
    assert np.median(np.abs(x[track, 1] / y[track, 2] - 1)) < 0.01
    with_target = ~track & (pid > 0)
    assert (
        with_target.sum() > 0.99 * (~track).sum()
        and np.median(np.abs(x[with_target, 5] / y[with_target, 6] - 1)) < 0.05
    )
    assert (x[~track, 6] + x[~track, 7] == x[~track, 5]).all()
    bend = np.abs(np.arctan2(x[track, 7], x[track, 8]) - np.arctan2(x[track, 3], x[track, 4]))
    assert np.quantile(np.minimum(bend, 2 * np.pi - bend), 0.5) > 0.05


def test_fcc_events_hold_the_two_muons_of_the_z(fcc: Table) -> None:
    """The sample is mu+ mu- H: hard muons of opposite charge, in elements as in targets."""
    masses = []
    for x, y in zip(fcc.ragged("elements"), fcc.ragged("targets"), strict=True):
        muons = x[(y[:, 0] == MUON) & (x[:, 1] > 20)]
        if len(muons) == 2:
            a, b = muons
            cosine = a[3] * b[3] + a[4] * b[4]
            masses.append(np.sqrt(2 * a[1] * b[1] * (np.cosh(a[2] - b[2]) - cosine)))
    assert len(masses) > 60 and np.median(masses) == pytest.approx(91.2, abs=1.5)


@pytest.mark.slow
def test_cms_candidates_are_matched_to_generator_particles(cms: Table) -> None:
    x, y = cms.ragged("elements").values, cms.ragged("targets").values
    track, pid = x[:, 0] == TRACK, y[:, 0]
    assert len(cms) == 10 and cms.ragged("elements").lengths.min() == 1344
    matched = track & (pid > 0)
    assert matched.sum() > 900 and (x[matched, 9] == y[matched, 1]).all()
    assert (
        np.median(np.abs(x[matched, 1] / y[matched, 2] - 1)) < 0.02
        and np.abs(x[matched, 2] - y[matched, 3]).max() < 0.0201
    )
    towers = ~track & (pid > 0)
    assert np.isin(pid[towers], (CHARGED_HADRON, NEUTRAL_HADRON, PHOTON, ELECTRON)).all() and towers.sum() > 500
    assert (cms.fixed("gen_met") >= 0).all()


def test_matching_is_one_to_one_and_of_the_same_charge() -> None:
    def line(pt: list[float], eta: list[float], charge: list[int]) -> VisibleParticles:
        size = np.zeros(len(pt))
        return VisibleParticles(np.array(pt), np.array(eta), size, np.array(pt), np.array(charge), size)

    true = line([10, 10, 5], [0.0, 0.005, 1.0], [1, 1, -1])
    tracks = line([10.1, 5.0, 20.0], [0.004, 1.0, 0.0], [1, 1, 1])
    particle_index, track_index = match_tracks(true, tracks, 0.02)
    assert particle_index.tolist() == [1] and track_index.tolist() == [0]
    assert [len(each) for each in match_tracks(true, tracks.take([]), 0.02)] == [0, 0]


@pytest.mark.slow
def test_real_files_are_recognised_and_make_datasets(tmp_path: Path) -> None:
    path = public("particleflow/coffea/test_FCC_Winter2023.root")
    dataset = prepare(find("particleflow"), input=[str(path)], output=str(tmp_path / "dataset"), workers=1)
    assert sum(dataset.splits.values()) == 100
    assert isinstance(
        event_files.read_events(str(public("particleflow/coffea/pfnano.root"))).reader, pfnano.PfNanoReader
    )


def test_generated_events_are_read_back(tmp_path: Path) -> None:
    [(path, count)] = generator.write_events(3, 1, tmp_path, config=SMALL)
    table = next(iter(event_files.read_events(str(path))))
    assert count == len(table) == 3 and TOWER in table.ragged("elements").values[:, 0]
