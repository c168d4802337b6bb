"""The columns of particle-flow events, in the order of the public Delphes data set. Units: GeV, radians.

An event table has two ragged columns of the same length: `elements`, float32 (n, 12), and `targets`, float32 (n, 7).
Row i of `targets` is the target of row i of `elements`. The fixed columns are `event` and, where known, `process`
(an index into PROCESSES) and `gen_met` (transverse momentum of all neutrinos, GeV).
"""

from __future__ import annotations

ELEMENTS = "elements"
TARGETS = "targets"
PROCESS = "process"
GEN_MET = "gen_met"

TOWER, TRACK = 1, 2
"""The type of an element, its first feature. Type 0 is padding."""

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
"""Class names, indexed by the `pid` of a target."""
NONE, CHARGED_HADRON, NEUTRAL_HADRON, PHOTON, ELECTRON, MUON = range(len(CLASSES))

PROCESSES = ("ttbar", "qcd", "parametric")
"""Process names, indexed by the number in `process`. The last one is not a physics process."""
