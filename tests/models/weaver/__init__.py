"""Jets in ROOT files, configurations of the shape of weaver's public ones, and weaver's own loader beside clew."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np
import uproot
import yaml

TOP = """
treename: tree
selection:
new_variables:
   part_mask: ak.ones_like(part_deta)
   part_pt: np.hypot(part_px, part_py)
   part_pt_log: np.log(part_pt)
   part_logptrel: np.log(part_pt/jet_pt)
   part_deltaR: np.hypot(part_deta, part_dphi)
   jet_isTop: label
   jet_isQCD: 1-label
preprocess:
   method: manual
   data_fraction:
inputs:
   pf_points:
      length: 16
      pad_mode: wrap
      vars:
         - [part_deta, null]
         - [part_dphi, null]
   pf_features:
      length: 16
      pad_mode: wrap
      vars:
         - [part_pt_log, 1.7, 0.7]
         - [part_logptrel, -4.7, 0.7, -3, 3, 1]
         - [part_energy, 10, 0.1]
         - [part_deltaR, 0.2, 4.0]
   pf_mask:
      length: 16
      pad_mode: constant
      vars:
         - [part_mask, null]
labels:
   type: simple
   value: [jet_isTop, jet_isQCD]
observers:
   - event_no
   - jet_pt
weights:
"""
"""Like the public configurations of top tagging: one list, wrapped, no weights."""

AK8 = """
treename: tree
selection:
   (jet_pt > 200) & (np.abs(jet_eta) < 2.5) & ((fj_isTop == 1) | (fj_isQCD == 1)) & (event_no%7!=0)
test_time_selection:
   (event_no%7==0)
new_variables:
   pfcand_mask: ak.ones_like(part_deta)
   four_momenta: _p4_from_pxpypze(part_px, part_py, part_pz, part_energy)
   pfcand_pt_log: np.log(four_momenta.pt)
   sv_mask: ak.ones_like(sv_mass)
   fj_isTop: label
   fj_isQCD: (1-label)
preprocess:
   method: manual
inputs:
   pf_points:
      length: 20
      vars:
         - part_deta
         - part_dphi
   pf_features:
      length: 20
      vars:
         - [pfcand_pt_log, 1, 0.5]
         - part_deta
         - [part_energy, 10, 0.1, -2, 2, -1]
   pf_mask:
      length: 20
      vars:
         - pfcand_mask
   sv_features:
      length: 3
      vars:
         - [sv_mass, 1.2, 0.3]
         - [jet_pt, 500, 0.005]
   sv_mask:
      length: 3
      vars:
         - sv_mask
   jet:
      length: null
      vars:
         - [jet_mass, 80, 0.02]
         - [jet_eta, 0, 1]
labels:
   type: simple
   value: [fj_isTop, fj_isQCD]
observers: [event_no, jet_pt]
weights:
   use_precomputed_weights: false
   reweight_method: flat
   reweight_vars:
      jet_pt: [200, 300, 400, 600, 1200]
      jet_mass: [-1000, 100, 1000]
   reweight_classes: [fj_isTop, fj_isQCD]
   class_weights: [1, 0.5]
   reweight_threshold: 15
   reweight_hists:
"""
"""Like the public configurations of AK8 jets: two lists, jet variables, a selection and flat weights."""

_WEAVER = """
import json, sys, time
import numpy as np
import torch
from weaver.utils.dataset import SimpleIterDataset
from weaver.utils.import_tools import import_module

time.sleep = lambda seconds: None  # weaver waits after its warnings
*others, config, files, network, training = json.loads(sys.argv[1])
for each in others:
    SimpleIterDataset({"all": files}, each, for_training=True, fetch_step=-1, async_load=False)
if training:  # measures scaling and weights, and stores them next to the configuration
    SimpleIterDataset({"all": files}, config, for_training=True, fetch_step=-1, async_load=False)
loader = SimpleIterDataset({"all": files}, config, for_training=False, fetch_step=-1, async_load=False)
names = loader.config.input_names
rows = list(loader)
arrays = {name: np.stack([x[name] for x, _, _ in rows]) for name in names}
labels = {f"label:{name}": np.array([y[name] for _, y, _ in rows]) for name in loader.config.label_names}
observed = {f"observer:{name}": np.array([z[name] for _, _, z in rows]) for name in loader.config.observer_names}
result = {}
if network:
    module = import_module(network, name="_network_module")
    torch.manual_seed(0)
    model, _ = module.get_model(loader.config)
    torch.save(model.state_dict(), "weights.pt")
    x = [torch.from_numpy(arrays[name][:64]) for name in names]
    label = torch.from_numpy(labels[f"label:{loader.config.label_names[0]}"][:64])
    loss = module.get_loss(loader.config) if hasattr(module, "get_loss") else torch.nn.CrossEntropyLoss()
    with torch.no_grad():
        output = model.eval()(*x)
        flat = label.is_floating_point()
        result["loss"] = loss(output.squeeze() if flat else output, label.float() if flat else label.long()).item()
np.savez("weaver.npz", **arrays, **labels, **observed, **result)
"""


def write_jets(path: Path, count: int, seed: int = 1) -> Path:
    """Write a ROOT file of jets: lists of particles and vertices, jet variables and labels; one jet is empty."""
    random = np.random.default_rng(seed)
    top = random.integers(0, 2, count)
    parts, vertices = random.poisson(10 + 8 * top), random.poisson(1.5, count)
    parts[:3] = [0, 1, 40]
    pt, eta, phi = random.exponential(20, parts.sum()) + 0.5, *random.normal(0, 0.3, (2, parts.sum()))
    lists = {
        "part_px": pt * np.cos(phi),
        "part_py": pt * np.sin(phi),
        "part_pz": pt * np.sinh(eta),
        "part_deta": eta,
        "part_dphi": phi,
    }
    columns = {name: ak.unflatten(values.astype(np.float32), parts) for name, values in lists.items()}
    columns["part_energy"] = ak.unflatten(pt * np.cosh(eta), parts)  # double precision
    columns["sv_mass"] = ak.unflatten(random.exponential(1.5, vertices.sum()).astype(np.float32), vertices)
    scalars: dict[str, np.ndarray[Any, Any]] = {
        "jet_pt": (random.uniform(150, 1000, count) * (1 + 0.2 * top)).astype(np.float32),
        "jet_mass": random.normal(80 + 40 * top, 25),
        "jet_eta": random.normal(0, 1.2, count).astype(np.float32),
        "label": top.astype(np.int32),
        "event_no": np.arange(count) + 1000 * seed,
        "genweight": random.uniform(0.5, 1.5, count).astype(np.float32),
    }
    with uproot.recreate(path) as file:
        kinds = {name: f"var * {array.type.content.content}" for name, array in columns.items()}
        file.mktree("tree", {**kinds, **{name: values.dtype for name, values in scalars.items()}})
        file["tree"].extend({**columns, **scalars})
    return path


def run_weaver(
    config: Path,
    files: Sequence[Path],
    *,
    network: Path | None = None,
    training: bool = False,
    others: Sequence[Path] = (),
) -> Any:
    """Load files with weaver's own loader, in a process of its own, without a test-time selection.

    Args:
        config: The data configuration.
        files: The files.
        network: A network whose loss is computed.
        training: Whether weaver measures scaling and weights, and stores them next to the configuration.
        others: More configurations for which it does this.

    Returns:
        Arrays of all events by name, and with a network the loss of the first 64 events; the weights of the network
        are in `weights.pt`.
    """
    settings = {**yaml.safe_load(config.read_text()), "test_time_selection": None}
    own = config.with_name("of_weaver.yaml")
    own.write_text(yaml.safe_dump(settings, sort_keys=False))
    paths = [*map(str, others), str(own)]
    words = json.dumps([*paths, [str(file) for file in files], str(network) if network else None, training])
    done = subprocess.run(
        [sys.executable, "-c", _WEAVER, words], cwd=config.parent, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return np.load(config.with_name("weaver.npz"))
