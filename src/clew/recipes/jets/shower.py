"""Synthetic jets: Pythia's collisions, clustered by fastjet (both of the extra `hep`).

No detector: constituents are the stable particles that the event record ends with, neutrinos left out. A jet of a
class holds the quarks or the gluon of its parent (`SPECIES`), and nothing else of the hard process:

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

JETS_A_FILE = 1000
Positive = Annotated[float, Field(gt=0)]

_TO_NEUTRINOS = ("23:onMode = off", "23:onIfAny = 12 14 16")
_TO_QUARKS = "onIfAny = 1 2 3 4 5"
UNSEEN = (12, 14, 16)


class Species(NamedTuple):
    """How a class is made: Pythia's settings, and the partons that its jet must hold (b quarks among them)."""

    settings: tuple[str, ...]
    partons: tuple[int, ...]
    many: int
    bottoms: int | None = None


_LIGHT = (1, 2, 3)
_QUARKS = (1, 2, 3, 4, 5)
SPECIES: dict[str, Species] = {
    "q": Species(("WeakBosonAndParton:qg2gmZq = on", "WeakZ0:gmZmode = 2", *_TO_NEUTRINOS), _LIGHT, 1),
    "g": Species(("WeakBosonAndParton:qqbar2gmZg = on", "WeakZ0:gmZmode = 2", *_TO_NEUTRINOS), (21,), 1),
    "W": Species(("WeakDoubleBoson:ffbar2ZW = on", *_TO_NEUTRINOS, "24:onMode = off", f"24:{_TO_QUARKS}"), _QUARKS, 2),
    "Z": Species(
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
    "top": Species(("Top:gg2ttbar = on", "Top:qqbar2ttbar = on", "24:onMode = off", f"24:{_TO_QUARKS}"), _QUARKS, 3, 1),
}


class Generator(Section):
    """What `clew data generate` makes."""

    pt: tuple[Positive, Positive] = (500.0, 700.0)
    """Of jets, lowest and highest."""
    eta: Positive = 2.0
    """Largest, either way."""
    radius: Positive = 0.8
    """Of anti-kT."""
    softest: Annotated[float, Field(ge=0)] = 0.1
    """pT below which particles are not seen at all."""
    energy: Positive = 13_600.0
    """Of the collision of two protons."""

    @model_validator(mode="after")
    def _range(self) -> Self:
        low, high = self.pt
        if not low < high < self.energy / 2:
            raise ValueError(f"pt must be a range (low, high) below half the energy, got {(low, high)}")
        return self

    @property
    def label(self) -> str:
        """For the names of files."""
        return f"pt{self.pt[0]:g}to{self.pt[1]:g}"


def write(
    jets: int, seed: int, folder: Path, *, first: int = 0, config: Generator | None = None
) -> Iterator[tuple[Path, int]]:
    """Write synthetic jets under `folder`, JETS_A_FILE a file; yield each file and its jets.

    The class of jet n is n modulo five, so that every range has all. A file has random streams of its own, one a class.

    Raises:
        RecipeError: pythia8mc or fastjet is not installed.
        ConfigError: a negative number, or a beginning in the middle of a file.
    """
    config = config or Generator()
    if min(jets, seed, first) < 0 or first % JETS_A_FILE:
        raise ConfigError(
            f"jets, seed must be 0 or more, first a multiple of {JETS_A_FILE}, got {jets}, {seed}, {first}"
        )
    load()
    folder.mkdir(parents=True, exist_ok=True)
    for start in range(first, first + jets, JETS_A_FILE):
        count = min(JETS_A_FILE, first + jets - start)
        number = start // JETS_A_FILE
        path = folder / f"synthetic-jets-{config.label}-seed{seed}-{number:05d}.h5"
        make(count, seed, number, config).save(path)
        yield path, count


def make(count: int, seed: int, file: int, config: Generator) -> Table:
    """The first jets of a file, classes in turn."""
    names = list(SPECIES)
    own = [len(range(place, count, len(names))) for place in range(len(names))]
    jets: list[dict[str, Any]] = [{}] * count
    for place, (name, wanted) in enumerate(zip(names, own, strict=True)):
        stream = int(np.random.SeedSequence([seed, file, place]).generate_state(1)[0]) % 900_000_000
        jets[place :: len(names)] = _of_class(SPECIES[name], wanted, stream + 1, config)
    return _table(jets, np.arange(count) % len(names), file * JETS_A_FILE)


@cache
def load() -> tuple[Any, Any, Any]:
    """pythia8mc, fastjet and awkward.

    Raises:
        RecipeError: one is not installed.
    """
    try:
        found = [importlib.import_module(name) for name in ("pythia8mc", "fastjet", "awkward")]
    except ImportError as error:
        raise RecipeError(f"synthetic jets need Pythia and fastjet ({error}): pip install 'clew[hep]'") from error
    pythia, fastjet, awkward = found
    return pythia, fastjet, awkward


def _of_class(species: Species, wanted: int, stream: int, config: Generator) -> list[dict[str, Any]]:
    if not wanted:
        return []
    pythia = _started(species, stream, config)
    found: list[dict[str, Any]] = []
    idle = 0
    while len(found) < wanted:
        events = pythia.nextBatch(min(max(2 * (wanted - len(found)), 10), 200))
        jets = list(_jets(events, species, config, pythia))
        idle = 0 if jets else idle + len(events)
        if idle > 20_000:
            raise ConfigError(f"generator.pt: no jets in {config.pt} GeV among {idle:,} collisions; widen the range")
        found += jets
    return found[:wanted]


def _started(species: Species, stream: int, config: Generator) -> Any:
    made = load()[0].Pythia("", False)
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
        made.readString(line)
    if not made.init():
        raise RecipeError("Pythia does not start with these settings of the generator")
    return made


def _jets(events: Any, species: Species, config: Generator, pythia: Any) -> Iterator[dict[str, Any]]:
    """At most one jet an event: the hardest that fits."""
    _, fastjet, ak = load()
    particles = events.prt
    final = particles[particles.status > 0]
    for unseen in UNSEEN:
        final = final[abs(final.id) != unseen]
    final = final[final.p.px**2 + final.p.py**2 >= config.softest**2]
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
        own = np.arange(of_jets[event], of_jets[event + 1])
        for jet in own[np.argsort(-axes[0][own], kind="stable")]:
            if _fits([each[jet] for each in axes], ids[near], places, species, config):
                rows = of_final[event] + np.sort(ak.to_numpy(lists[jet]))
                yield _described(parts[:, rows], pid[rows], pythia)
                break


def _flat(records: Any, *names: str) -> list[Any]:
    """Fields of records of all events, one after the other."""
    ak = load()[2]
    return [ak.to_numpy(ak.flatten(records[name])) for name in names]


def _fits(axis: list[Any], ids: Any, places: Any, species: Species, config: Generator) -> bool:
    """Whether a jet is in range and holds just the partons of its class."""
    pt, eta, phi = axis
    if not (config.pt[0] <= pt <= config.pt[1] and abs(eta) < config.eta):
        return False
    near = np.hypot(places[1] - eta, _turn(places[2] - phi)) < config.radius
    inside = ids[near & (np.isin(ids, _QUARKS) | (ids == 21))]
    fit = len(inside) == species.many and bool(np.isin(inside, species.partons).all())
    return fit and (species.bottoms is None or int((inside == 5).sum()) >= species.bottoms)


def _described(momenta: Any, pid: Any, pythia: Any) -> dict[str, Any]:
    """Constituents, the hardest first, and their sum."""
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
        "part_dphi": _turn(phi - jet_phi),
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


def _turn(angle: Any) -> Any:
    return (angle + np.pi) % (2 * np.pi) - np.pi


def _table(jets: list[dict[str, Any]], label: Any, first: int) -> Table:
    parts = [name for name in jets[0] if name.startswith("part_")]
    like = Ragged.from_lists([jet["part_pt"] for jet in jets])
    columns: dict[str, Any] = {name: like.share(np.concatenate([jet[name] for jet in jets])) for name in parts}
    numbers = {name: np.array([jet[name] for jet in jets]) for name in jets[0] if name not in parts}
    units = dict.fromkeys(("part_pt", "part_energy", "jet_pt", "jet_mass", "jet_energy"), "GeV")
    event = np.arange(first, first + len(jets))
    return Table({"event": event, "label": label.astype(np.int64), **numbers, **columns}, units=units)


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Without the banner that fastjet prints, past Python, at its first clustering."""
    sys.stdout.flush()
    kept = os.dup(1)
    with open(os.devnull, "w") as nothing:  # noqa: PTH123
        os.dup2(nothing.fileno(), 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
