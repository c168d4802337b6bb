"""Hyper-parameter optimisation of PanDA (phpo, iDDS): propose points (steering), and evaluate one point on the grid.

Steering reads `{"points": [[point, loss or null], ...], "opt_space": ...}` and writes a list of new points. Nothing is
stored between two calls. Evaluation reads a point and a list of files, and writes `{"status", "loss", "message"}`.
"""

from clew.tuning.panda.evaluation import FAILED_LOSS, evaluate, read_json, train_on_grid
from clew.tuning.panda.job_metadata import write_json, write_script_outputs
from clew.tuning.panda.parameters import from_panda, to_panda
from clew.tuning.panda.steering import steer

__all__ = [
    "FAILED_LOSS",
    "evaluate",
    "from_panda",
    "read_json",
    "steer",
    "to_panda",
    "train_on_grid",
    "write_json",
    "write_script_outputs",
]
