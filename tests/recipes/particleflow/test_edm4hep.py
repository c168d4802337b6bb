"""EDM4hep files of other productions: other names, no hits, no links."""

from __future__ import annotations

from pathlib import Path

import awkward as ak
import numpy as np
import pytest
import uproot

from clew import Table
from clew.recipes.particleflow.columns import CHARGED_HADRON, MUON, NEUTRAL_HADRON, PHOTON, TOWER, TRACK
from tests.cli import clew, done
from tests.data.readers import problem, whole

Collections = dict[str, dict[str, list[float]]]
TRACKS = [(10.0, 0.5, 1, 211), (30.0, -2.5, -1, 13)]
"""pT, phi, charge and PDG number of each track, at eta 0."""
CLUSTERS = [(7.0, 2.5, 22), (40.0, 1.5, 2112)]
"""Energy, phi and PDG number of each cluster."""
OUTER_PHI = [0.4, -2.4]


def momenta(pt: list[float], phi: list[float]) -> dict[str, list[float]]:
    x, y = (np.asarray(pt) * function(phi) for function in (np.cos, np.sin))
    return {"momentum.x": x.tolist(), "momentum.y": y.tolist(), "momentum.z": [0.0] * len(pt)}


def collections() -> Collections:
    """Tracks first, then clusters, in the names of a new version of podio. There are track states, but no hits."""
    pt = [*(track[0] for track in TRACKS), *(cluster[0] for cluster in CLUSTERS)]
    phi = [*(track[1] for track in TRACKS), *(cluster[1] for cluster in CLUSTERS)]
    charge = [*(float(track[2]) for track in TRACKS), 0.0, 0.0]
    pdg: list[float] = [
        *(-track[3] * track[2] if track[3] == 13 else track[3] for track in TRACKS),
        *(c[2] for c in CLUSTERS),
    ]
    return {
        "ReconstructedParticles": {
            "energy": pt,
            "charge": charge,
            "PDG": pdg,
            **momenta(pt, phi),
            "tracks_begin": [0, 1, 2, 2],
            "tracks_end": [1, 2, 2, 2],
        },
        "_ReconstructedParticles_tracks": {"index": [0, 1]},
        "EFlowTrack": {"trackStates_begin": [0, 2], "trackStates_end": [2, 4]},
        "_EFlowTrack_trackStates": {  # at the interaction point, and at the calorimeter
            "location": [1, 4, 1, 4],
            "referencePoint.x": [0, 2000 * np.cos(OUTER_PHI[0]), 0, 2000 * np.cos(OUTER_PHI[1])],
            "referencePoint.y": [0, 2000 * np.sin(OUTER_PHI[0]), 0, 2000 * np.sin(OUTER_PHI[1])],
            "referencePoint.z": [0, 2000, 0, 0],
        },
        "Particle": {
            "PDG": [25, *pdg],
            "generatorStatus": [2, 1, 1, 1, 1],
            "charge": [0.0, *charge],
            "mass": [125.0, 0.1, 0.1, 0.0, 0.9],
            **momenta([1.0, *pt], [0.0, *phi]),
        },
        "_MCRecoAssociations_rec": {"index": [0, 1, 2, 3]},
        "_MCRecoAssociations_sim": {"index": [1, 2, 3, 4]},
    }


def write_edm4hep(path: Path, contents: Collections, events: int = 3) -> Path:
    columns = {f"{name}.{member}": values for name, members in contents.items() for member, values in members.items()}
    arrays = {name: ak.Array([values] * events) for name, values in columns.items()}
    with uproot.recreate(path) as file:
        file.mktree("events", {name: array.type.content for name, array in arrays.items()})
        file["events"].extend(arrays)
    return path


def outer_phi(table: Table) -> list[float]:
    tracks = next(iter(table.ragged("elements")))[:2]
    return [float(phi) for phi in np.arctan2(tracks[:, 7], tracks[:, 8])]


def without(contents: Collections, *names: str) -> Collections:
    return {name: members for name, members in contents.items() if name not in names}


def test_a_file_without_hits_uses_the_state_at_the_calorimeter(tmp_path: Path) -> None:
    table = whole(write_edm4hep(tmp_path / "a.root", collections()), kind="edm4hep")
    elements, targets = (next(iter(table.ragged(name))) for name in ("elements", "targets"))
    assert elements[:, 0].tolist() == [TRACK, TRACK, TOWER, TOWER]
    assert targets[:, 0].tolist() == [CHARGED_HADRON, MUON, PHOTON, NEUTRAL_HADRON]
    assert elements[2:, 6].tolist() == [7.0, 0.0], "the PDG number says which energy is electromagnetic"
    assert outer_phi(table) == pytest.approx(OUTER_PHI, abs=1e-5)
    assert elements[0, 6] == pytest.approx(np.arcsinh(1.0))


def test_a_file_without_states_uses_the_direction_of_the_momentum(tmp_path: Path) -> None:
    contents = without(collections(), "_EFlowTrack_trackStates")
    assert outer_phi(whole(write_edm4hep(tmp_path / "a.root", contents), kind="edm4hep")) == pytest.approx([0.5, -2.5])
    contents = without(contents, "EFlowTrack", "_ReconstructedParticles_tracks")
    for side in ("begin", "end"):
        del contents["ReconstructedParticles"][f"tracks_{side}"]
    table = whole(write_edm4hep(tmp_path / "b.root", contents), kind="edm4hep")
    assert outer_phi(table) == pytest.approx([0.5, -2.5])
    assert next(iter(table.ragged("elements")))[:, 0].tolist() == [TRACK, TRACK, TOWER, TOWER]


def test_a_file_without_links_is_matched_by_distance(tmp_path: Path) -> None:
    contents = without(collections(), "_MCRecoAssociations_rec", "_MCRecoAssociations_sim")
    table = whole(write_edm4hep(tmp_path / "a.root", contents), kind="edm4hep")
    pid = next(iter(table.ragged("targets")))[:, 0]
    assert pid.tolist() == [CHARGED_HADRON, MUON, PHOTON, NEUTRAL_HADRON]


def test_other_names_of_collections_are_known(tmp_path: Path) -> None:
    names = {
        "ReconstructedParticles": "PandoraPFOs",
        "_ReconstructedParticles_tracks": "_PandoraPFOs_tracks",
        "EFlowTrack": "SiTracks_Refitted",
        "_EFlowTrack_trackStates": "_SiTracks_Refitted_trackStates",
        "Particle": "MCParticles",
        "_MCRecoAssociations_rec": "_RecoMCTruthLink_from",
        "_MCRecoAssociations_sim": "_RecoMCTruthLink_to",
    }
    renamed = {names[name]: members for name, members in collections().items()}
    one, other = (
        whole(write_edm4hep(tmp_path / f"{number}.root", contents), kind="edm4hep")
        for number, contents in enumerate((collections(), renamed))
    )
    for column in ("elements", "targets"):
        np.testing.assert_array_equal(one.ragged(column).values, other.ragged(column).values)


def test_what_a_file_lacks_is_named(tmp_path: Path) -> None:
    path = write_edm4hep(tmp_path / "a.root", without(collections(), "ReconstructedParticles"))
    assert problem(path, "edm4hep").startswith("no branch ReconstructedParticles.energy")
    contents = without(collections(), "_MCRecoAssociations_rec")
    path = write_edm4hep(tmp_path / "b.root", contents)
    output = done("prepare", "particleflow", "--input", path, "--output", tmp_path / "dataset", "--workers", "1")
    assert output.count("no hits of tracks (TrackerHits); the outer position of a track is its state at the") == 1
    assert "no links to true particles (MCRecoAssociations); true particles are matched by distance" in output
    path = write_edm4hep(tmp_path / "c.root", without(collections(), "Particle"))
    outcome = clew("prepare", "particleflow", "--input", path, "--output", tmp_path / "other", "--workers", "1")
    assert outcome.code == 2 and "c.root: no true particles" in outcome.err
    assert "clew predict RUN --input FILE" in outcome.err
