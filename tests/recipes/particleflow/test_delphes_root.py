"""Trees as Delphes writes them: tracks and towers are elements, `Particle` is the truth."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np
import pytest
import uproot
from numpy.typing import NDArray
from uproot.containers import AsArray
from uproot.models.TRef import Model_TRef, Model_TRefArray

from clew import Dataset, Table
from clew.recipes.particleflow import delphes_root, event_files
from clew.recipes.particleflow.columns import CHARGED_HADRON, MUON, NEUTRAL_HADRON, NONE, PHOTON, TOWER, TRACK
from tests.cli import clew, done
from tests.data.readers import problem, whole

PION, PION_TRACK, NEUTRON, GAMMA, MU = range(5)
NUMBERS = [11, 12, 13, 14, 15]
"""`fUniqueID` of the particles of every event."""
COLLECTIONS: dict[str, dict[str, list[float]]] = {
    # a pion that decayed, and one of each kind that reaches the detector
    "Particle": {
        "fUniqueID": [*NUMBERS],
        "PID": [111, 211, 2112, 22, -13],
        "Status": [2, 1, 1, 1, 1],
        "Charge": [0, 1, 0, 0, 1],
        "E": [9.0, 20.0, 40.0, 7.0, 30.0],
        "PT": [8.0, 10.0, 20.0, 5.0, 30.0],
        "Eta": [999.9, 1.3, 1.3, -0.9, 0.0],
        "Phi": [0.0, 0.5, 1.5, 2.5, -2.5],
    },
    "Track": {
        "PT": [10.1, 29.9],
        "Eta": [1.3, 0.0],
        "Phi": [0.5, -2.5],
        "Charge": [1, 1],
        "EtaOuter": [1.35, 0.0],
        "PhiOuter": [0.4, -2.4],
    },
    "Tower": {
        "ET": [10.0, 20.0, 5.0],
        "Eta": [1.32, 1.31, -0.91],
        "Phi": [0.4, 1.51, 2.5],
        "E": [20.0, 39.0, 7.1],
        "Eem": [2.0, 0.0, 7.1],
        "Ehad": [18.0, 39.0, 0.0],
    },
}
REFERENCES = {
    "Track": {"Particle": [NUMBERS[PION_TRACK], NUMBERS[MU]]},
    "Tower": {"Particles": [NUMBERS[PION_TRACK], NUMBERS[NEUTRON], NUMBERS[GAMMA]]},
}


def write_delphes(path: Path, collections: dict[str, dict[str, list[float]]], events: int = 3) -> Path:
    """A tree with the names of Delphes: `Track_size`, `Track.PT`..."""
    arrays = {
        name: ak.zip({member: ak.Array([values] * events) for member, values in members.items()})
        for name, members in collections.items()
    }
    with uproot.recreate(path) as file:
        names = {"counter_name": lambda name: f"{name}_size", "field_name": lambda outer, inner: f"{outer}.{inner}"}
        file.mktree("Delphes", {name: array.type.content for name, array in arrays.items()}, **names)
        file["Delphes"].extend(arrays)
    return path


def with_references() -> dict[str, dict[str, Any]]:
    return {name: {**members, **REFERENCES.get(name, {})} for name, members in COLLECTIONS.items()}


def first_event(table: Table) -> tuple[NDArray[Any], NDArray[Any]]:
    """Elements and targets of the first of three equal events."""
    assert len(table) == 3 and table.fixed("event").tolist() == [0, 1, 2]
    elements, targets = (list(table.ragged(name)) for name in ("elements", "targets"))
    np.testing.assert_array_equal(elements[0], elements[2])
    return elements[0], targets[0]


def test_towers_and_tracks_are_elements_in_the_columns_of_the_public_set(tmp_path: Path) -> None:
    elements, _ = first_event(whole(write_delphes(tmp_path / "a.root", with_references()), kind="delphes_root"))
    assert elements[:, 0].tolist() == [TOWER] * 3 + [TRACK] * 2
    np.testing.assert_allclose(
        elements[1], [1, 39 / np.cosh(1.31), 1.31, np.sin(1.51), np.cos(1.51), 39, 0, 39, *[0] * 4], rtol=1e-5
    )
    outer = [1.35, np.sin(0.4), np.cos(0.4)]
    np.testing.assert_allclose(
        elements[3], [2, 10.1, 1.3, np.sin(0.5), np.cos(0.5), 10.1 * np.cosh(1.3), *outer, 1, 0, 0], rtol=1e-5
    )
    assert elements[4, 10] == 1, "the flag of a true muon"


@pytest.mark.parametrize("collections", [with_references(), COLLECTIONS], ids=["references", "distance"])
def test_targets_are_the_particles_of_tracks_and_of_towers_without_track(
    tmp_path: Path, collections: dict[str, dict[str, list[float]]]
) -> None:
    _, targets = first_event(whole(write_delphes(tmp_path / "a.root", collections), kind="delphes_root"))
    assert targets[:, 0].tolist() == [NONE, NEUTRAL_HADRON, PHOTON, CHARGED_HADRON, MUON]
    np.testing.assert_allclose(targets[[1, 2, 3, 4], 6], [40, 7, 20, 30], rtol=1e-5)


def test_a_reference_to_a_particle_that_was_removed_has_no_target(tmp_path: Path) -> None:
    collections = with_references()
    collections["Particle"] = {name: values[:-1] for name, values in collections["Particle"].items()}
    _, targets = first_event(whole(write_delphes(tmp_path / "a.root", collections), kind="delphes_root"))
    assert targets[:, 0].tolist() == [NONE, NEUTRAL_HADRON, PHOTON, CHARGED_HADRON, NONE]


def test_particle_flow_candidates_take_the_place_of_tracks_and_towers(tmp_path: Path) -> None:
    towers = COLLECTIONS["Tower"]
    eflow = {
        "EFlowTrack": COLLECTIONS["Track"],
        "EFlowPhoton": {name: values[2:] for name, values in towers.items()},
        "EFlowNeutralHadron": {name: values[1:2] for name, values in towers.items()},
        "Particle": COLLECTIONS["Particle"],
    }
    elements, targets = first_event(whole(write_delphes(tmp_path / "a.root", eflow), kind="delphes_root"))
    assert elements[:, 0].tolist() == [TOWER] * 2 + [TRACK] * 2
    assert targets[:, 0].tolist() == [PHOTON, NEUTRAL_HADRON, CHARGED_HADRON, MUON]


def test_what_a_file_lacks_is_named(tmp_path: Path) -> None:
    path = write_delphes(tmp_path / "a.root", {"Particle": COLLECTIONS["Particle"]})
    assert "none of Track, Tower, EFlowTrack" in problem(path, "delphes_root")
    path = write_delphes(tmp_path / "b.root", {"Track": COLLECTIONS["Track"]})
    assert problem(path, "delphes_root").startswith("no branch 'Particle.fUniqueID' of true particles")
    track = {name: values for name, values in COLLECTIONS["Track"].items() if "Outer" not in name}
    path = write_delphes(tmp_path / "c.root", {**COLLECTIONS, "Track": track})
    output = done("prepare", "particleflow", "--input", path, "--output", tmp_path / "dataset", "--workers", "1")
    assert "no Track.EtaOuter; the outer position of a track is the direction of its momentum" in output
    assert "no references (Track.Particle, Tower.Particles); true particles are matched by distance" in output


@pytest.mark.slow
def test_a_file_is_prepared_and_predicted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = write_delphes(tmp_path / "delphes.root", with_references(), events=20)
    assert isinstance(event_files.read_events(str(path)).reader, delphes_root.DelphesRootReader)
    small = ("--set", "model.width=16", "--set", "model.kind=element", "--set", "train.epochs=1")
    halves = ("--set", "prepare.split={train: 0.5, val: 0.5}")
    done("prepare", "particleflow", "--input", path, "--output", "dataset", "--workers", "1", *halves)
    assert sum(Dataset("dataset").splits.values()) == 20
    done("train", "particleflow", "--dataset", "dataset", "--output", "runs/a", *small)
    unlabelled = write_delphes(tmp_path / "real.root", {n: m for n, m in COLLECTIONS.items() if n != "Particle"})
    assert "3 events" in done("predict", "runs/a", "--input", unlabelled, "--output", "pf.h5")
    outcome = clew("prepare", "particleflow", "--input", unlabelled, "--output", "other", "--workers", "1")
    assert outcome.code == 2 and "clew predict RUN --input FILE" in outcome.err


def test_references_are_decoded_from_the_bytes_that_root_writes(tmp_path: Path) -> None:
    """The branches of `TRef` and `TRefArray` in a `TClonesArray`, written byte by byte."""

    def tref(number: int) -> bytes:
        return struct.pack(">HIIH", 1, number, 0x03000000, 0)

    def tref_array(numbers: list[int]) -> bytes:
        content = struct.pack(">HII", 1, 0, 0x02000000) + b"\x00" + struct.pack(">iiH", len(numbers), 0, 0)
        content += np.array(numbers, ">i4").tobytes()
        return struct.pack(">IH", (len(content) + 2) | 0x40000000, 1) + content

    single, several = [[5, 9], [7]], [[[5, 9], [7]], [[1]]]
    columns = {
        "Track.Particle": [list(b"".join(map(tref, event))) for event in single],
        "Tower.Particles": [list(b"".join(map(tref_array, event))) for event in several],
    }
    arrays = {name: ak.values_astype(ak.Array(values), np.uint8) for name, values in columns.items()}
    with uproot.recreate(tmp_path / "a.root") as file:
        file.mktree("Delphes", {name: array.type.content for name, array in arrays.items()})
        file["Delphes"].extend(arrays)
    with uproot.open(tmp_path / "a.root") as file:
        track, tower = (file["Delphes"][name] for name in columns)
        # what uproot chooses for such branches (uproot.interpretation.identify)
        single_reference = uproot.AsJagged(Model_TRef.strided_interpretation(None))
        reference_arrays = uproot.AsObjects(AsArray(False, False, Model_TRefArray, ()), tower)
        arrays_read = tower.array(interpretation=reference_arrays), track.array(interpretation=single_reference)
    references = delphes_root.reference_pairs(arrays_read)
    assert references.unique_id.tolist() == [5, 9, 7, 1, 5, 9, 7]
    assert references.element.tolist() == [0, 0, 1, 2, 3, 4, 5], "three towers, the first with two particles"
