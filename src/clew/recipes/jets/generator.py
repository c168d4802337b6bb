"""Synthetic jets: collisions from Pythia, clustered by fastjet (both in the extra `hep`).

There is no detector: constituents are the stable particles at the end of the event record, without neutrinos. A jet of
a class contains the quarks or the gluon of its parent (`JET_CLASSES`), and nothing else of the hard process:

    q, g   a light quark, a gluon, back to back with a Z that decays to neutrinos
    W, Z   both quarks of a boson, back to back with a Z to neutrinos, or a W to an electron or muon and a neutrino
    top    the b and both quarks of a top's W, in pairs of tops

Units: GeV.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

import numpy as np
from pydantic import Field, model_validator

from clew import Ragged, Section, Table
from clew.errors import ConfigError, RecipeError

JETS_PER_FILE = 1000
Positive = Annotated[float, Field(gt=0)]

_TO_NEUTRINOS = ("23:onMode = off", "23:onIfAny = 12 14 16")
_TO_QUARKS = "onIfAny = 1 2 3 4 5"
NEUTRINOS = (12, 14, 16)


class JetClass(NamedTuple):
    """A class of jets: settings of Pythia, and the partons that the jet must contain."""

    settings: tuple[str, ...]
    partons: tuple[int, ...]
    parton_count: int
    bottoms: int | None = None


_LIGHT = (1, 2, 3)
_QUARKS = (1, 2, 3, 4, 5)
JET_CLASSES: dict[str, JetClass] = {
    "q": JetClass(("WeakBosonAndParton:qg2gmZq = on", "WeakZ0:gmZmode = 2", *_TO_NEUTRINOS), _LIGHT, 1),
    "g": JetClass(("WeakBosonAndParton:qqbar2gmZg = on", "WeakZ0:gmZmode = 2", *_TO_NEUTRINOS), (21,), 1),
    "W": JetClass(("WeakDoubleBoson:ffbar2ZW = on", *_TO_NEUTRINOS, "24:onMode = off", f"24:{_TO_QUARKS}"), _QUARKS, 2),
    "Z": JetClass(
        (
            "WeakDoubleBoson:ffbar2ZW = on",
            "23:onMode = off",
            f"23:{_TO_QUARKS}",
            "24:onMode = off",
            "24:onIfAny = 11 13",
        ),
        _QUARKS,
        2,
    ),
    "top": JetClass(
        ("Top:gg2ttbar = on", "Top:qqbar2ttbar = on", "24:onMode = off", f"24:{_TO_QUARKS}"), _QUARKS, 3, 1
    ),
}


class JetGeneratorConfig(Section):
    """The jets of `clew data generate`."""

    pt: tuple[Positive, Positive] = (500.0, 700.0)
    """Lowest and highest pT of a jet, GeV."""
    eta: Positive = 2.0
    """Largest |eta| of a jet."""
    radius: Positive = 0.8
    """Radius parameter of anti-kT."""
    min_pt: Annotated[float, Field(ge=0)] = 0.1
    """Smallest pT of a particle, GeV."""
    energy: Positive = 13_600.0
    """Collision energy of the two protons, GeV."""

    @model_validator(mode="after")
    def _range(self) -> Self:
        low, high = self.pt
        if not low < high < self.energy / 2:
            raise ValueError(f"pt must be a range (low, high) below half the energy, got {(low, high)}")
        return self

    @property
    def label(self) -> str:
        """The range of pT, for file names."""
        return f"pt{self.pt[0]:g}to{self.pt[1]:g}"


def write_jets(
    jets: int, seed: int, folder: Path, *, first: int = 0, config: JetGeneratorConfig | None = None
) -> Iterator[tuple[Path, int]]:
    """Write synthetic jets under `folder`, JETS_PER_FILE per file; yield each file and its number of jets.

    The class of jet n is n modulo five, so every range has all classes. A file has one random stream per class.

    Raises:
        RecipeError: pythia8mc or fastjet is not installed.
        ConfigError: A number is negative, or `first` is not the first jet of a file.
    """
    config = config or JetGeneratorConfig()
    if min(jets, seed, first) < 0 or first % JETS_PER_FILE:
        raise ConfigError(
            f"jets, seed must be 0 or more, first a multiple of {JETS_PER_FILE}, got {jets}, {seed}, {first}"
        )
    load_generators()
    folder.mkdir(parents=True, exist_ok=True)
    for start in range(first, first + jets, JETS_PER_FILE):
        count = min(JETS_PER_FILE, first + jets - start)
        number = start // JETS_PER_FILE
        path = folder / f"synthetic-jets-{config.label}-seed{seed}-{number:05d}.h5"
        make_jets(count, seed, number, config).save(path)
        yield path, count


def make_jets(count: int, seed: int, file: int, config: JetGeneratorConfig) -> Table:
    """The first `count` jets of a file; the class changes from jet to jet."""
    names = list(JET_CLASSES)
    counts = [len(range(place, count, len(names))) for place in range(len(names))]
    jets: list[dict[str, Any]] = [{}] * count
    for place, (name, jets_of_class) in enumerate(zip(names, counts, strict=True)):
        stream = int(np.random.SeedSequence([seed, file, place]).generate_state(1)[0]) % 900_000_000
        jets[place :: len(names)] = _jets_of_class(JET_CLASSES[name], jets_of_class, stream + 1, config)
    return _table(jets, np.arange(count) % len(names), file * JETS_PER_FILE)


@cache
def load_generators() -> tuple[Any, Any, Any]:
    """The modules pythia8mc, fastjet and awkward.

    Raises:
        RecipeError: One of them is not installed.
    """
    try:
        modules = [importlib.import_module(name) for name in ("pythia8mc", "fastjet", "awkward")]
    except ImportError as error:
        raise RecipeError(f"synthetic jets need Pythia and fastjet ({error}): pip install 'clew[hep]'") from error
    pythia, fastjet, awkward = modules
    return pythia, fastjet, awkward


def _jets_of_class(species: JetClass, count: int, stream: int, config: JetGeneratorConfig) -> list[dict[str, Any]]:
    if not count:
        return []
    pythia = _start_pythia(species, stream, config)
    selected: list[dict[str, Any]] = []
    collisions_without_jet = 0
    while len(selected) < count:
        events = pythia.nextBatch(min(max(2 * (count - len(selected)), 10), 200))
        jets = list(_jets(events, species, config, pythia))
        collisions_without_jet = 0 if jets else collisions_without_jet + len(events)
        if collisions_without_jet > 20_000:
            raise ConfigError(
                f"generator.pt: no jets in {config.pt} GeV among {collisions_without_jet:,} collisions; widen the range"
            )
        selected += jets
    return selected[:count]


def _start_pythia(species: JetClass, stream: int, config: JetGeneratorConfig) -> Any:
    pythia = load_generators()[0].Pythia("", False)
    low, high = config.pt
    for line in (
        "Print:quiet = on",
        f"Beams:eCM = {config.energy}",
        "Random:setSeed = on",
        f"Random:seed = {stream}",
        f"PhaseSpace:pTHatMin = {0.9 * low}",
        f"PhaseSpace:pTHatMax = {1.15 * high}",
        *species.settings,
    ):
        pythia.readString(line)
    if not pythia.init():
        raise RecipeError("Pythia does not start with these settings of the generator")
    return pythia


def _jets(events: Any, species: JetClass, config: JetGeneratorConfig, pythia: Any) -> Iterator[dict[str, Any]]:
    """At most one jet per event: the one with the highest pT that belongs to the class."""
    _, fastjet, ak = load_generators()
    particles = events.prt
    final = particles[particles.status > 0]
    for neutrino in NEUTRINOS:
        final = final[abs(final.id) != neutrino]
    final = final[final.p.px**2 + final.p.py**2 >= config.min_pt**2]
    momenta = ak.zip({"px": final.p.px, "py": final.p.py, "pz": final.p.pz, "E": final.p.e})
    with _silent():
        clusters = fastjet.ClusterSequence(momenta, fastjet.JetDefinition(fastjet.antikt_algorithm, config.radius))
        jets, members = clusters.inclusive_jets(config.pt[0]), clusters.constituent_index(config.pt[0])
    hard = particles[particles.status == -23]
    axes, quarks = _polar(*_flat(jets, "px", "py", "pz")), _polar(*_flat(hard.p, "px", "py", "pz"))
    ids, pid = abs(_flat(hard, "id")[0]), _flat(final, "id")[0]
    parts, lists = np.stack(_flat(momenta, "px", "py", "pz", "E")), ak.flatten(members)
    of_jets, of_hard, of_final = (np.append(0, np.cumsum(ak.to_numpy(ak.num(each)))) for each in (jets, hard, final))
    for event in range(len(events)):
        near = slice(of_hard[event], of_hard[event + 1])
        places = [each[near] for each in quarks]
        jets_of_event = np.arange(of_jets[event], of_jets[event + 1])
        for jet in jets_of_event[np.argsort(-axes[0][jets_of_event], kind="stable")]:
            if _fits([each[jet] for each in axes], ids[near], places, species, config):
                rows = of_final[event] + np.sort(ak.to_numpy(lists[jet]))
                yield _describe_jet(parts[:, rows], pid[rows], pythia)
                break


def _flat(records: Any, *names: str) -> list[Any]:
    """Fields of the records of all events, concatenated."""
    ak = load_generators()[2]
    return [ak.to_numpy(ak.flatten(records[name])) for name in names]


def _fits(axis: list[Any], ids: Any, places: Any, species: JetClass, config: JetGeneratorConfig) -> bool:
    """Whether a jet is in range and contains exactly the partons of its class."""
    pt, eta, phi = axis
    if not (config.pt[0] <= pt <= config.pt[1] and abs(eta) < config.eta):
        return False
    near = np.hypot(places[1] - eta, _wrap_angle(places[2] - phi)) < config.radius
    inside = ids[near & (np.isin(ids, _QUARKS) | (ids == 21))]
    fit = len(inside) == species.parton_count and bool(np.isin(inside, species.partons).all())
    return fit and (species.bottoms is None or int((inside == 5).sum()) >= species.bottoms)


def _describe_jet(momenta: Any, pid: Any, pythia: Any) -> dict[str, Any]:
    """The constituents of a jet, highest pT first, and their sum."""
    px, py, pz, energy = momenta
    pt, eta, phi = _polar(px, py, pz)
    order = np.argsort(-pt, kind="stable")
    total = [values.sum() for values in (px, py, pz, energy)]
    jet_pt, jet_eta, jet_phi = (float(each) for each in _polar(*total[:3]))
    mass = float(np.sqrt(max(total[3] ** 2 - sum(part**2 for part in total[:3]), 0.0)))
    charge = np.array([round(pythia.particleData.charge(int(each))) for each in pid], dtype=np.int8)
    parts = {
        "part_pt": pt,
        "part_eta": eta,
        "part_phi": phi,
        "part_energy": energy,
        "part_deta": eta - jet_eta,
        "part_dphi": _wrap_angle(phi - jet_phi),
    }
    jet = {"jet_pt": jet_pt, "jet_eta": jet_eta, "jet_phi": jet_phi, "jet_mass": mass, "jet_energy": float(total[3])}
    return {
        **{name: values[order].astype(np.float32) for name, values in parts.items()},
        "part_charge": charge[order],
        "part_pid": pid[order].astype(np.int32),
        **jet,
    }


def _polar(px: Any, py: Any, pz: Any) -> tuple[Any, Any, Any]:
    """pT, pseudorapidity and azimuth."""
    pt = np.hypot(px, py)
    return pt, np.arcsinh(pz / np.maximum(pt, 1e-12)), np.arctan2(py, px)


def _wrap_angle(angle: Any) -> Any:
    return (angle + np.pi) % (2 * np.pi) - np.pi


def _table(jets: list[dict[str, Any]], label: Any, first: int) -> Table:
    parts = [name for name in jets[0] if name.startswith("part_")]
    part_pt = Ragged.from_lists([jet["part_pt"] for jet in jets])
    columns: dict[str, Any] = {name: part_pt.share(np.concatenate([jet[name] for jet in jets])) for name in parts}
    numbers = {name: np.array([jet[name] for jet in jets]) for name in jets[0] if name not in parts}
    units = dict.fromkeys(("part_pt", "part_energy", "jet_pt", "jet_mass", "jet_energy"), "GeV")
    event = np.arange(first, first + len(jets))
    return Table({"event": event, "label": label.astype(np.int64), **numbers, **columns}, units=units)


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Hide the banner that fastjet prints at its first clustering. It does not use Python's standard output."""
    sys.stdout.flush()
    stdout_copy = os.dup(1)
    with open(os.devnull, "w") as null:  # noqa: PTH123
        os.dup2(null.fileno(), 1)
    try:
        yield
    finally:
        os.dup2(stdout_copy, 1)
        os.close(stdout_copy)
