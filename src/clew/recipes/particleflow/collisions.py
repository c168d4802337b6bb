"""Collisions by Pythia (of the extra `hep`), as the particles that a detector can see.

Stable particles with |eta| under FARTHEST, neutrinos left out, all from one point. Units: GeV.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np

from clew import Ragged, Table
from clew.errors import RecipeError
from clew.recipes.particleflow import truth

FARTHEST = 5.5
"""In eta: beyond it nothing reaches a tower."""
BATCH = 100
NEUTRINOS = (12, 14, 16)
SETTINGS: dict[str, tuple[str, ...]] = {
    "ttbar": ("Top:gg2ttbar = on", "Top:qqbar2ttbar = on"),
    "qcd": ("HardQCD:all = on",),
    "minimum bias": ("SoftQCD:inelastic = on",),
}


class Started:
    """A Pythia with a random stream of its own."""

    def __init__(self, process: str, seed: int, *, energy: float, settings: Mapping[str, float] | None = None) -> None:
        """`settings` are more of Pythia's own, by name.

        Raises:
            RecipeError: pythia8mc is not installed, or does not start.
        """
        self._pythia = load()[0].Pythia("", False)
        more = [f"{name} = {value}" for name, value in (settings or {}).items()]
        fixed = ["Print:quiet = on", f"Beams:eCM = {energy}", "Random:setSeed = on", f"Random:seed = {seed}"]
        for line in (*fixed, *SETTINGS[process], *more):
            self._pythia.readString(line)
        if not self._pythia.init():
            raise RecipeError(f"Pythia does not start for {process} at {energy:g} GeV")

    def collisions(self, count: int) -> Table:
        """The next collisions: the columns of `truth.Particles`, and `gen_met` of their neutrinos."""
        columns: dict[str, list[Any]] = {}
        for made in self._batches(count):
            for name, values in made.items():
                columns.setdefault(name, []).append(values)
        lengths, met = np.concatenate(columns.pop("lengths")), np.concatenate(columns.pop("gen_met"))
        like = Ragged.from_lengths(np.concatenate(columns["pt"]), lengths)
        parts = {name: like.share(np.concatenate(values)) for name, values in columns.items()}
        return Table({"gen_met": met, **parts}, units=dict.fromkeys(("pt", "energy", "gen_met"), "GeV"))

    def _batches(self, count: int) -> Iterator[dict[str, Any]]:
        _, ak = load()
        while count > 0:
            events = self._pythia.nextBatch(min(count, BATCH))
            count -= len(events)
            final = events.prt[events.prt.status > 0]
            momenta = [ak.to_numpy(ak.flatten(final.p[name])) for name in ("px", "py", "pz", "e")]
            pid = ak.to_numpy(ak.flatten(final.id))
            yield _visible(momenta, pid, ak.to_numpy(ak.num(final)), self._pythia.particleData)


@cache
def load() -> tuple[Any, Any]:
    """pythia8mc and awkward.

    Raises:
        RecipeError: one is not installed.
    """
    try:
        return importlib.import_module("pythia8mc"), importlib.import_module("awkward")
    except ImportError as error:
        what = f"these events need Pythia ({error}): pip install 'clew[hep]', or --set generator.kind=parametric"
        raise RecipeError(what) from error


def version() -> str:
    """Of Pythia: another one makes other collisions."""
    return str(load()[0].Pythia("", False).parm("Pythia:versionNumber"))


def _visible(momenta: list[Any], pid: Any, lengths: Any, data: Any) -> dict[str, Any]:
    px, py, pz, energy = momenta
    event = np.repeat(np.arange(len(lengths)), lengths)
    unseen = np.isin(np.abs(pid), NEUTRINOS)
    lost = [np.bincount(event[unseen], values[unseen], minlength=len(lengths)) for values in (px, py)]
    pt = np.hypot(px, py)
    with np.errstate(divide="ignore"):
        eta = np.arcsinh(pz / pt)
    keep = ~unseen & (np.abs(eta) < FARTHEST)
    charge, kind = _species(pid[keep], data)
    numbers = {"pt": pt, "eta": eta, "phi": np.arctan2(py, px), "energy": energy}
    return {
        "lengths": np.bincount(event[keep], minlength=len(lengths)),
        "gen_met": np.hypot(*lost).astype(np.float32),
        **{name: values[keep].astype(np.float32) for name, values in numbers.items()},
        "charge": charge,
        "kind": kind,
    }


def _species(pid: Any, data: Any) -> tuple[Any, Any]:
    """Charges and classes of particles by their PDG numbers."""
    known, place = np.unique(pid, return_inverse=True)
    charge = np.array([round(data.charge(int(each))) for each in known], dtype=np.int8)
    return charge[place], truth.kinds(known, charge)[place]
