"""Collisions of Pythia (needs the extra `hep`), as the particles that are visible to a detector.

These are stable particles with |eta| below MAX_ETA, without neutrinos, all from one point. Units: GeV.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np

from clew import Ragged, Table
from clew.errors import RecipeError
from clew.recipes.particleflow import targets

MAX_ETA = 5.5
"""Maximum |eta| of particles: beyond it no particle reaches a tower."""
EVENTS_PER_BATCH = 100
NEUTRINOS = (12, 14, 16)
PROCESS_SETTINGS: dict[str, tuple[str, ...]] = {
    "ttbar": ("Top:gg2ttbar = on", "Top:qqbar2ttbar = on"),
    "qcd": ("HardQCD:all = on",),
    "minimum bias": ("SoftQCD:inelastic = on",),
}


class PythiaGenerator:
    """A Pythia instance with its own random stream."""

    def __init__(self, process: str, seed: int, *, energy: float, settings: Mapping[str, float] | None = None) -> None:
        """Initialise Pythia.

        Args:
            process: A key of PROCESS_SETTINGS.
            seed: The random seed of Pythia.
            energy: Collision energy, GeV.
            settings: More settings of Pythia, by name.

        Raises:
            RecipeError: pythia8mc is not installed, or does not start.
        """
        self._pythia = load_pythia()[0].Pythia("", False)
        more = [f"{name} = {value}" for name, value in (settings or {}).items()]
        fixed = ["Print:quiet = on", f"Beams:eCM = {energy}", "Random:setSeed = on", f"Random:seed = {seed}"]
        for line in (*fixed, *PROCESS_SETTINGS[process], *more):
            self._pythia.readString(line)
        if not self._pythia.init():
            raise RecipeError(f"Pythia does not start for {process} at {energy:g} GeV")

    def collisions(self, count: int) -> Table:
        """Return the next collisions: the columns of `targets.VisibleParticles`, and `gen_met` of their neutrinos."""
        columns: dict[str, list[Any]] = {}
        for batch in self._batches(count):
            for name, values in batch.items():
                columns.setdefault(name, []).append(values)
        lengths, met = np.concatenate(columns.pop("lengths")), np.concatenate(columns.pop("gen_met"))
        like = Ragged.from_lengths(np.concatenate(columns["pt"]), lengths)
        parts = {name: like.share(np.concatenate(values)) for name, values in columns.items()}
        return Table({"gen_met": met, **parts}, units=dict.fromkeys(("pt", "energy", "gen_met"), "GeV"))

    def _batches(self, count: int) -> Iterator[dict[str, Any]]:
        _, ak = load_pythia()
        while count > 0:
            events = self._pythia.nextBatch(min(count, EVENTS_PER_BATCH))
            count -= len(events)
            final = events.prt[events.prt.status > 0]
            momenta = [ak.to_numpy(ak.flatten(final.p[name])) for name in ("px", "py", "pz", "e")]
            pid = ak.to_numpy(ak.flatten(final.id))
            yield _visible_particles(momenta, pid, ak.to_numpy(ak.num(final)), self._pythia.particleData)


@cache
def load_pythia() -> tuple[Any, Any]:
    """Import pythia8mc and awkward.

    Raises:
        RecipeError: One of them is not installed.
    """
    try:
        return importlib.import_module("pythia8mc"), importlib.import_module("awkward")
    except ImportError as error:
        message = f"these events need Pythia ({error}): pip install 'clew[hep]', or --set generator.kind=parametric"
        raise RecipeError(message) from error


def pythia_version() -> str:
    """Return the version of Pythia: other versions make other collisions."""
    return str(load_pythia()[0].Pythia("", False).parm("Pythia:versionNumber"))


def _visible_particles(momenta: list[Any], pid: Any, lengths: Any, data: Any) -> dict[str, Any]:
    px, py, pz, energy = momenta
    event = np.repeat(np.arange(len(lengths)), lengths)
    neutrino = np.isin(np.abs(pid), NEUTRINOS)
    missing = [np.bincount(event[neutrino], values[neutrino], minlength=len(lengths)) for values in (px, py)]
    pt = np.hypot(px, py)
    with np.errstate(divide="ignore"):
        eta = np.arcsinh(pz / pt)
    keep = ~neutrino & (np.abs(eta) < MAX_ETA)
    charge, kind = _charges_and_classes(pid[keep], data)
    numbers = {"pt": pt, "eta": eta, "phi": np.arctan2(py, px), "energy": energy}
    return {
        "lengths": np.bincount(event[keep], minlength=len(lengths)),
        "gen_met": np.hypot(*missing).astype(np.float32),
        **{name: values[keep].astype(np.float32) for name, values in numbers.items()},
        "charge": charge,
        "kind": kind,
    }


def _charges_and_classes(pid: Any, data: Any) -> tuple[Any, Any]:
    """Return the charges and classes of particles, from their PDG numbers."""
    unique, place = np.unique(pid, return_inverse=True)
    charge = np.array([round(data.charge(int(each))) for each in unique], dtype=np.int8)
    return charge[place], targets.particle_classes(unique, charge)[place]
