"""The columns of particle-flow events, in the order of the public Delphes set. Units: GeV, radians.

An event table has `elements`, ragged float32 (n, 12), and `targets`, ragged float32 (n, 7), of the same items: the
target in a row is that of the element in it. Fixed columns beside them: `event`, and where they are known `process`
(a place in PROCESSES) and `gen_met` (of all neutrinos, GeV).
"""

from __future__ import annotations

ELEMENTS = "elements"
TARGETS = "targets"
PROCESS = "process"
GEN_MET = "gen_met"

TOWER, TRACK = 1, 2
"""What an element is: its first feature. Zero is nobody's, and stands for padding."""

TOWER_FEATURES = ("type", "et", "eta", "sin_phi", "cos_phi", "energy", "em_energy", "had_energy", "", "", "", "")
TRACK_FEATURES = (
    "type",
    "pt",
    "eta",
    "sin_phi",
    "cos_phi",
    "p",
    "eta_outer",
    "sin_phi_outer",
    "cos_phi_outer",
    "charge",
    "is_gen_muon",
    "is_gen_electron",
)
FEATURES = len(TRACK_FEATURES)

TARGET_FEATURES = ("pid", "charge", "pt", "eta", "sin_phi", "cos_phi", "energy")
TARGET = len(TARGET_FEATURES)

CLASSES = ("none", "charged hadron", "neutral hadron", "photon", "electron", "muon")
"""By the `pid` of a target."""
NONE, CHARGED_HADRON, NEUTRAL_HADRON, PHOTON, ELECTRON, MUON = range(len(CLASSES))

PROCESSES = ("ttbar", "qcd", "parametric")
"""By the number in `process`; the last is no physics."""
