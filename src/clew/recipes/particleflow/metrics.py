"""How well particles are told and measured, as tallies: exact for any split of the events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from clew import Section, Table, metrics
from clew.recipes.particleflow import hadronic
from clew.recipes.particleflow.columns import CLASSES, NONE, TARGETS
from clew.recipes.particleflow.curves import ByClass, Response

Floats = NDArray[np.float64]
PARTICLES = CLASSES[1:]
RATIO = np.linspace(0, 2, 81)


class Judging(Section):
    """Where figures are shown, and what jets are."""

    padded: Annotated[int, Field(ge=0)] = 6400
    """Length that events are padded to in `accuracy_padded`, the accuracy as the benchmark of 2022 counts it: every
    place without an element is right. 0: leave it out."""
    pt_edges: tuple[float, ...] = (0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10, 15, 20, 30, 50, 100, 200)
    eta_edges: tuple[float, ...] = tuple(np.arange(-5, 5.1, 0.5).tolist())
    jets: bool = True
    """Whether jets are clustered, where fastjet is there."""
    jet_radius: Annotated[float, Field(gt=0)] = 0.4
    jet_pt: Annotated[float, Field(gt=0)] = 20.0
    """GeV: the least of a true jet."""
    jet_match: Annotated[float, Field(gt=0)] = 0.2
    """Largest distance in eta-phi of a predicted jet from a true one."""


def tallies(samples: Table, objects: Table, settings: Judging) -> dict[str, metrics.Metric]:
    """Accuracy over elements; of each class efficiency and fake rate, also against pt and eta; jets and missing pt.

    Efficiency: of elements whose particle is of a class, the share that is told as such. Fake rate: of those told as a
    class, the share whose particle is another or none.
    """
    truth, found = true_particles(samples), {name: objects.ragged(name).values for name in objects}
    weight = samples.weights[samples.ragged(TARGETS).events]
    true, said = truth["pid"].astype(np.int64), found["pid"].astype(np.int64)
    right = true == said
    made: dict[str, metrics.Metric] = {"accuracy": metrics.Ratio.of(right, weight)}
    if settings.padded:
        made["accuracy_padded"] = _padded(samples, right, weight, settings.padded)
    for number, name in enumerate(PARTICLES, 1):
        short = name.replace(" ", "_")
        made[f"efficiency/{short}"] = metrics.Ratio.of(right[true == number], weight[true == number])
        made[f"fake/{short}"] = metrics.Ratio.of(~right[said == number], weight[said == number])
    made |= _measured(truth, found, right & (true != NONE), weight)
    made |= hadronic.tallies(samples, truth, objects, settings)
    made["confusion"] = metrics.Confusion.of(said, true, CLASSES, weight)
    return made | _against(truth, found, right, weight, settings)


def true_particles(samples: Table) -> dict[str, Floats]:
    """What `reconstruct` gives, of the truth: one value an element."""
    pid, charge, pt, eta, sine, cosine, energy = samples.ragged(TARGETS).values.T.astype(np.float64)
    return {"pid": pid, "charge": charge, "pt": pt, "eta": eta, "phi": np.arctan2(sine, cosine), "energy": energy}


def _padded(samples: Table, right: NDArray[np.bool_], weight: Floats, length: int) -> metrics.Ratio:
    empty = np.maximum(length - samples.ragged(TARGETS).lengths, 0) @ samples.weights
    return metrics.Ratio(float(weight[right].sum() + empty), float(weight.sum() + empty))


def _measured(
    truth: dict[str, Floats], found: dict[str, Floats], right: NDArray[np.bool_], weight: Floats
) -> dict[str, metrics.Metric]:
    """Energy of particles of the right class against the truth."""
    made: dict[str, metrics.Metric] = {}
    for name in ("pt", "energy"):
        ratio = found[name][right] / np.maximum(truth[name][right], 1e-6)
        what = f"{'pT' if name == 'pt' else 'energy'} of particles of the right class"
        axis = "predicted / true"
        made[f"{name}_response"] = Response.of(ratio, RATIO, axis=axis, what=what, weights=weight[right])
    return made


def _against(
    truth: dict[str, Floats], found: dict[str, Floats], right: NDArray[np.bool_], weight: Floats, settings: Judging
) -> dict[str, metrics.Metric]:
    made: dict[str, metrics.Metric] = {}
    where: Sequence[tuple[str, tuple[float, ...], str]] = (
        ("pt", settings.pt_edges, "pT [GeV]"),
        ("eta", settings.eta_edges, "pseudorapidity"),
    )
    for name, edges, axis in where:
        kinds = (("efficiency", truth, right, "true"), ("fake", found, ~right, "predicted"))
        for what, of, passed, whose in kinds:
            made[f"{what}_{name}"] = ByClass.of(
                of[name],
                passed,
                of["pid"],
                edges,
                PARTICLES,
                axis=f"{whose} {axis}",
                label="fake rate" if what == "fake" else what,
                weights=weight,
            )
    return made
